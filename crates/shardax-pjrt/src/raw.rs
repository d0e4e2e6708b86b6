//! The functions of the PJRT C API that this crate calls: argument structs, indices in the function table, and sizes of
//! the structs as the C header defines them (`PJRT_…_STRUCT_SIZE`: up to the end of the last field).

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

macro_rules! opaque {
    ($( $name:ident )*) => { $(
        #[repr(C)]
        pub struct $name { _opaque: [u8; 0] }
    )* };
}
opaque!(
    RawError RawEvent RawClient RawDevice RawDeviceDescription RawExecutable RawLoaded RawBuffer RawSerialized RawMemory
    RawTopology
);

/// A function of the table: takes its argument struct, returns null or an owned error.
pub type RawFn = unsafe extern "C" fn(*mut c_void) -> *mut RawError;
/// The two functions of the table that return nothing.
pub type RawVoidFn = unsafe extern "C" fn(*mut c_void);

/// The start of `PJRT_Api`, which the table of function pointers follows.
#[repr(C)]
pub struct RawApiHeader {
    pub struct_size: usize,
    pub extension_start: *const RawExtension,
    pub version_size: usize,
    pub version_extension: *mut c_void,
    pub major: c_int,
    pub minor: c_int,
}

/// A link in the chain of extensions.
#[repr(C)]
pub struct RawExtension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *const RawExtension,
}

/// Entries of the function table in API version 0.81. A plugin can have fewer or more.
pub const TABLE_LEN: usize = 118;

pub const ERROR_DESTROY: usize = 0;
pub const ERROR_MESSAGE: usize = 1;

/// An argument struct and the entry of the table that takes it.
///
/// # Safety
/// `INDEX` is the entry whose C argument struct has this layout, and the struct starts with its size (`usize`).
pub unsafe trait Call {
    const INDEX: usize;
    const NAME: &'static str;
}

macro_rules! calls {
    ($( $name:ident $index:literal $size:literal $c_name:literal { $( $field:ident : $ty:ty ),* $(,)? } )*) => { $(
        #[repr(C)]
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut c_void,
            $( pub $field: $ty, )*
        }
        // A mistake in the transcription would otherwise crash.
        const _: () = {
            let mut _end = offset_of!($name, extension_start) + size_of::<*mut c_void>();
            $( _end = offset_of!($name, $field) + size_of::<$ty>(); )*
            assert!(_end == $size && $index < TABLE_LEN);
        };
        // SAFETY: layout and index are transcribed from the C API, version 0.81.
        unsafe impl Call for $name {
            const INDEX: usize = $index;
            const NAME: &'static str = $c_name;
        }
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, bools, raw pointers and optional function pointers are all valid when zero.
                unsafe { std::mem::zeroed() }
            }
        }
    )* };
}

calls! {
    ErrorDestroy 0 24 "PJRT_Error_Destroy" { error: *mut RawError }
    ErrorMessage 1 40 "PJRT_Error_Message" { error: *const RawError, message: *const c_char, message_size: usize }
    ErrorGetCode 2 28 "PJRT_Error_GetCode" { error: *const RawError, code: c_int }
    PluginInitialize 3 16 "PJRT_Plugin_Initialize" { }
    PluginAttributes 4 32 "PJRT_Plugin_Attributes" { attributes: *const NamedValue, num_attributes: usize }
    EventDestroy 5 24 "PJRT_Event_Destroy" { event: *mut RawEvent }
    EventIsReady 6 25 "PJRT_Event_IsReady" { event: *mut RawEvent, is_ready: bool }
    EventAwait 8 24 "PJRT_Event_Await" { event: *mut RawEvent }
    EventOnReady 9 40 "PJRT_Event_OnReady" {
        event: *mut RawEvent,
        callback: Option<unsafe extern "C" fn(*mut RawError, *mut c_void)>,
        user_arg: *mut c_void,
    }
    ClientCreate 10 88 "PJRT_Client_Create" {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut RawClient,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    ClientDestroy 11 24 "PJRT_Client_Destroy" { client: *mut RawClient }
    ClientPlatformName 12 40 "PJRT_Client_PlatformName" { client: *mut RawClient, text: *const c_char, text_size: usize }
    ClientProcessIndex 13 28 "PJRT_Client_ProcessIndex" { client: *mut RawClient, process_index: c_int }
    ClientPlatformVersion 14 40 "PJRT_Client_PlatformVersion" { client: *mut RawClient, text: *const c_char, text_size: usize }
    ClientDevices 15 40 "PJRT_Client_Devices" { client: *mut RawClient, devices: *const *mut RawDevice, num_devices: usize }
    ClientAddressableDevices 16 40 "PJRT_Client_AddressableDevices" {
        client: *mut RawClient, devices: *const *mut RawDevice, num_devices: usize,
    }
    ClientCompile 20 56 "PJRT_Client_Compile" {
        client: *mut RawClient,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut RawLoaded,
    }
    BufferFromHostBuffer 22 120 "PJRT_Client_BufferFromHostBuffer" {
        client: *mut RawClient,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        semantics: c_int,
        device: *mut RawDevice,
        memory: *mut RawMemory,
        device_layout: *mut c_void,
        done_with_host_buffer: *mut RawEvent,
        buffer: *mut RawBuffer,
    }
    DescriptionId 23 28 "PJRT_DeviceDescription_Id" { description: *mut RawDeviceDescription, id: c_int }
    DescriptionProcessIndex 24 28 "PJRT_DeviceDescription_ProcessIndex" {
        description: *mut RawDeviceDescription, process_index: c_int,
    }
    DescriptionAttributes 25 40 "PJRT_DeviceDescription_Attributes" {
        description: *mut RawDeviceDescription, num_attributes: usize, attributes: *const NamedValue,
    }
    DescriptionKind 26 40 "PJRT_DeviceDescription_Kind" {
        description: *mut RawDeviceDescription, text: *const c_char, text_size: usize,
    }
    DescriptionDebugString 27 40 "PJRT_DeviceDescription_DebugString" {
        description: *mut RawDeviceDescription, text: *const c_char, text_size: usize,
    }
    DeviceGetDescription 29 32 "PJRT_Device_GetDescription" {
        device: *mut RawDevice, description: *mut RawDeviceDescription,
    }
    DeviceLocalHardwareId 31 28 "PJRT_Device_LocalHardwareId" { device: *mut RawDevice, local_hardware_id: c_int }
    DeviceAddressableMemories 32 40 "PJRT_Device_AddressableMemories" {
        device: *mut RawDevice, memories: *const *mut RawMemory, num_memories: usize,
    }
    DeviceDefaultMemory 33 32 "PJRT_Device_DefaultMemory" { device: *mut RawDevice, memory: *mut RawMemory }
    DeviceMemoryStats 34 185 "PJRT_Device_MemoryStats" {
        device: *mut RawDevice,
        bytes_in_use: i64,
        peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
        num_allocs: i64, num_allocs_is_set: bool,
        largest_alloc_size: i64, largest_alloc_size_is_set: bool,
        bytes_limit: i64, bytes_limit_is_set: bool,
        bytes_reserved: i64, bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64, bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64, largest_free_block_bytes_is_set: bool,
        pool_bytes: i64, pool_bytes_is_set: bool,
        peak_pool_bytes: i64, peak_pool_bytes_is_set: bool,
    }
    MemoryKind 36 40 "PJRT_Memory_Kind" { memory: *mut RawMemory, text: *const c_char, text_size: usize }
    ExecutableDestroy 40 24 "PJRT_Executable_Destroy" { executable: *mut RawExecutable }
    ExecutableName 41 40 "PJRT_Executable_Name" { executable: *mut RawExecutable, text: *const c_char, text_size: usize }
    ExecutableNumOutputs 44 32 "PJRT_Executable_NumOutputs" { executable: *mut RawExecutable, num_outputs: usize }
    ExecutableCostAnalysis 46 40 "PJRT_Executable_GetCostAnalysis" {
        executable: *mut RawExecutable, num_properties: usize, properties: *const NamedValue,
    }
    ExecutableOutputMemoryKinds 47 48 "PJRT_Executable_OutputMemoryKinds" {
        executable: *mut RawExecutable,
        num_outputs: usize,
        kinds: *const *const c_char,
        kind_sizes: *const usize,
    }
    ExecutableOptimizedProgram 48 32 "PJRT_Executable_OptimizedProgram" {
        executable: *mut RawExecutable, program: *mut Program,
    }
    ExecutableSerialize 49 56 "PJRT_Executable_Serialize" {
        executable: *const RawExecutable,
        bytes: *const c_char,
        bytes_size: usize,
        serialized: *mut RawSerialized,
        deleter: Option<unsafe extern "C" fn(*mut RawSerialized)>,
    }
    LoadedDestroy 50 24 "PJRT_LoadedExecutable_Destroy" { executable: *mut RawLoaded }
    LoadedGetExecutable 51 32 "PJRT_LoadedExecutable_GetExecutable" {
        loaded: *mut RawLoaded, executable: *mut RawExecutable,
    }
    LoadedAddressableDevices 52 40 "PJRT_LoadedExecutable_AddressableDevices" {
        executable: *mut RawLoaded, devices: *const *mut RawDevice, num_devices: usize,
    }
    LoadedExecute 55 80 "PJRT_LoadedExecutable_Execute" {
        executable: *mut RawLoaded,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut RawBuffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut RawBuffer,
        device_complete_events: *mut *mut RawEvent,
        execute_device: *mut RawDevice,
    }
    DeserializeAndLoad 56 64 "PJRT_Executable_DeserializeAndLoad" {
        client: *mut RawClient,
        bytes: *const c_char,
        bytes_size: usize,
        loaded: *mut RawLoaded,
        overridden_options: *const c_char,
        overridden_options_size: usize,
    }
    BufferDestroy 58 24 "PJRT_Buffer_Destroy" { buffer: *mut RawBuffer }
    BufferMemoryLayout 63 104 "PJRT_Buffer_GetMemoryLayout" { buffer: *mut RawBuffer, layout: MemoryLayout }
    BufferMemory 66 32 "PJRT_Buffer_Memory" { buffer: *mut RawBuffer, memory: *mut RawMemory }
    BufferDelete 67 24 "PJRT_Buffer_Delete" { buffer: *mut RawBuffer }
    BufferIsDeleted 68 25 "PJRT_Buffer_IsDeleted" { buffer: *mut RawBuffer, is_deleted: bool }
    BufferCopyToDevice 69 40 "PJRT_Buffer_CopyToDevice" {
        buffer: *mut RawBuffer, device: *mut RawDevice, copy: *mut RawBuffer,
    }
    BufferToHostBuffer 70 56 "PJRT_Buffer_ToHostBuffer" {
        buffer: *mut RawBuffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut RawEvent,
    }
    BufferReadyEvent 72 32 "PJRT_Buffer_ReadyEvent" { buffer: *mut RawBuffer, event: *mut RawEvent }
    BufferUnsafePointer 73 32 "PJRT_Buffer_UnsafePointer" { buffer: *mut RawBuffer, pointer: usize }
    TopologyCreate 82 56 "PJRT_TopologyDescription_Create" {
        name: *const c_char,
        name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut RawTopology,
    }
    TopologyDestroy 83 24 "PJRT_TopologyDescription_Destroy" { topology: *mut RawTopology }
    TopologyPlatformName 84 40 "PJRT_TopologyDescription_PlatformName" {
        topology: *mut RawTopology, text: *const c_char, text_size: usize,
    }
    TopologyPlatformVersion 85 40 "PJRT_TopologyDescription_PlatformVersion" {
        topology: *mut RawTopology, text: *const c_char, text_size: usize,
    }
    TopologyDescriptions 86 40 "PJRT_TopologyDescription_GetDeviceDescriptions" {
        topology: *mut RawTopology, descriptions: *const *mut RawDeviceDescription, num_descriptions: usize,
    }
    TopologyAttributes 88 40 "PJRT_TopologyDescription_Attributes" {
        topology: *mut RawTopology, attributes: *const NamedValue, num_attributes: usize,
    }
    TopologyCompile 89 64 "PJRT_Compile" {
        topology: *mut RawTopology,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut RawClient,
        executable: *mut RawExecutable,
    }
    ExecutableOutputElementTypes 90 40 "PJRT_Executable_OutputElementTypes" {
        executable: *mut RawExecutable, types: *const c_int, num_types: usize,
    }
    ExecutableOutputDimensions 91 48 "PJRT_Executable_OutputDimensions" {
        executable: *mut RawExecutable, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }
    BufferCopyToMemory 92 40 "PJRT_Buffer_CopyToMemory" {
        buffer: *mut RawBuffer, memory: *mut RawMemory, copy: *mut RawBuffer,
    }
    ExecutableFingerprint 94 40 "PJRT_Executable_Fingerprint" {
        executable: *mut RawExecutable, text: *const c_char, text_size: usize,
    }
    // As of API 0.104. Older plugins know the first 112 bytes, and leave the rest unchanged.
    ExecutableMemoryStats 96 144 "PJRT_Executable_GetCompiledMemoryStats" {
        executable: *mut RawExecutable,
        generated_code: i64, argument: i64, output: i64, alias: i64, temp: i64,
        host_generated_code: i64, host_argument: i64, host_output: i64, host_alias: i64, host_temp: i64,
        peak: i64,
        total_size: i64, total_allocation: i64, indefinite_allocation: i64, peak_unpadded_heap: i64,
    }
}

/// An option or attribute.
#[repr(C)]
pub struct NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: NamedValueUnion,
    pub value_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union NamedValueUnion {
    pub string: *const c_char,
    pub int: i64,
    pub ints: *const i64,
    pub float: f32,
    pub boolean: bool,
}

/// A program and its format (`mlir`, `hlo_with_config`).
#[repr(C)]
pub struct Program {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub code: *mut c_char,
    pub code_size: usize,
    pub format: *const c_char,
    pub format_size: usize,
}

/// The memory layout of an array; only the tiled form is used here.
#[repr(C)]
pub struct MemoryLayout {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub tiled: TiledLayout,
    pub kind: c_int,
}

#[repr(C)]
pub struct TiledLayout {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub minor_to_major: *const i64,
    pub minor_to_major_size: usize,
    pub tile_dims: *const i64,
    pub tile_dim_sizes: *const usize,
    pub num_tiles: usize,
}

#[repr(C)]
pub struct ExecuteOptions {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub send_callbacks: *mut *mut c_void,
    pub recv_callbacks: *mut *mut c_void,
    pub num_send_ops: usize,
    pub num_recv_ops: usize,
    pub launch_id: c_int,
    pub non_donatable_input_indices: *const i64,
    pub num_non_donatable_input_indices: usize,
    pub context: *mut c_void,
    pub call_location: *const c_char,
    pub num_tasks: usize,
    pub task_ids: *mut c_int,
    pub incarnation_ids: *mut i64,
}

/// `PJRT_Buffer_MemoryLayout_Type`.
pub const TILED: c_int = 0;

/// `PJRT_HostBufferSemantics`.
pub const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
pub const IMMUTABLE_ZERO_COPY: c_int = 2;

const _: () = {
    assert!(size_of::<RawApiHeader>() + TABLE_LEN * size_of::<RawFn>() == 984);
    assert!(size_of::<RawExtension>() == 24);
    assert!(size_of::<NamedValue>() == 56);
    assert!(size_of::<Program>() == 48);
    assert!(offset_of!(MemoryLayout, kind) + size_of::<c_int>() == 76);
    assert!(size_of::<TiledLayout>() == 56);
    assert!(size_of::<ExecuteOptions>() == 112);
};
