//! A table of MPI's functions for three binary interfaces: the standard ABI of MPI 5, Open MPI's, and MPICH's.
//!
//! Handles are `usize` everywhere. A library whose handles are `int` (MPICH) reads the low half of the register that
//! passes a handle, and writes the low half of a zeroed `usize`.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::Library;

use crate::error::{Error, Kind, Result};

/// An MPI handle: a communicator, group, request or datatype.
pub(crate) type Handle = usize;

/// The constants that differ between the interfaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) interface: &'static str,
    pub(crate) world: Handle,
    pub(crate) byte: Handle,
    errors_return: Handle,
    status_ignore: usize,
    thread_multiple: c_int,
}

macro_rules! table {
    ($( $field:ident $name:literal ( $($arg:ty),* ); )*) => {
        /// A loaded library.
        pub(crate) struct Table {
            pub(crate) constants: Constants,
            /// The version that the library reports.
            pub(crate) version: String,
            pub(crate) path: String,
            $( pub(crate) $field: unsafe extern "C" fn($($arg),*) -> c_int, )*
        }

        impl Table {
            /// Reads the functions of a library, which is never unloaded: MPI's threads and exit handlers run in it.
            pub(crate) fn read(library: Library, path: &Path) -> std::result::Result<Table, String> {
                let library: &'static Library = Box::leak(Box::new(library));
                $(
                    // SAFETY: in every MPI library the function of this name has this type, with the handles of its
                    // ABI.
                    let $field = *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>(concat!($name, "\0").as_bytes()) }
                        .map_err(|_| concat!("it has no function ", $name))?;
                )*
                let version = version_text(library)?;
                let constants = constants(library, path, &version)?;
                let path = path.display().to_string();
                Ok(Table { constants, version, path, $( $field, )* })
            }
        }
    };
}

table! {
    initialized "MPI_Initialized" (*mut c_int);
    finalized "MPI_Finalized" (*mut c_int);
    init_thread "MPI_Init_thread" (*mut c_int, *mut c_void, c_int, *mut c_int);
    query_thread "MPI_Query_thread" (*mut c_int);
    finalize "MPI_Finalize" ();
    abort "MPI_Abort" (Handle, c_int);
    error_string "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    comm_rank "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size "MPI_Comm_size" (Handle, *mut c_int);
    comm_dup "MPI_Comm_dup" (Handle, *mut Handle);
    comm_group "MPI_Comm_group" (Handle, *mut Handle);
    comm_create_group "MPI_Comm_create_group" (Handle, Handle, c_int, *mut Handle);
    comm_set_errhandler "MPI_Comm_set_errhandler" (Handle, Handle);
    group_incl "MPI_Group_incl" (Handle, c_int, *const c_int, *mut Handle);
    group_free "MPI_Group_free" (*mut Handle);
    cancel "MPI_Cancel" (*mut Handle);
    test "MPI_Test" (*mut Handle, *mut c_int, *mut c_void);
    isend "MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv "MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    ibcast "MPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    iallgatherv "MPI_Iallgatherv"
        (*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle, *mut Handle);
}

fn version_text(library: &Library) -> std::result::Result<String, String> {
    type Get = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: in every MPI library the function of this name has this type.
    let get = unsafe { library.get::<Get>(b"MPI_Get_library_version\0") };
    let get = get.map_err(|_| "it has no function MPI_Get_library_version")?;
    // Larger than MPI_MAX_LIBRARY_VERSION_STRING of any library.
    let mut text = vec![0u8; 1 << 16];
    let mut len = 0;
    // SAFETY: may be called before MPI is initialized; the buffer is large enough.
    unsafe { get(text.as_mut_ptr().cast(), &raw mut len) };
    let len = text.iter().position(|&b| b == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..len]);
    Ok(text.split(['\n', '\r', ',']).next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the address of a static of Open MPI, which is the value of a predefined handle. `name` ends with a zero byte.
fn address_of_static(library: &Library, name: &'static str) -> std::result::Result<usize, String> {
    // SAFETY: only the address is used; Open MPI's predefined handles are the addresses of these statics.
    unsafe { library.get::<*const c_void>(name.as_bytes()) }
        .map(|symbol| symbol.into_raw() as usize)
        .map_err(|_| format!("it has no {}", name.trim_end_matches('\0')))
}

fn constants(library: &Library, path: &Path, version: &str) -> std::result::Result<Constants, String> {
    // The standard ABI has a library of its own, next to the implementation's.
    let file = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libmpi_abi")) {
        return Ok(Constants {
            interface: "the standard interface",
            world: 0x101,
            byte: 0x247,
            errors_return: 0x143,
            status_ignore: 0,
            thread_multiple: 4096,
        });
    }
    if version.contains("Open MPI") {
        return Ok(Constants {
            interface: "Open MPI",
            world: address_of_static(library, "ompi_mpi_comm_world\0")?,
            byte: address_of_static(library, "ompi_mpi_byte\0")?,
            errors_return: address_of_static(library, "ompi_mpi_errors_return\0")?,
            status_ignore: 0,
            thread_multiple: 3,
        });
    }
    // Members of the MPICH ABI initiative.
    if ["MPICH", "Intel", "MVAPICH", "CRAY"].iter().any(|family| version.contains(family)) {
        return Ok(Constants {
            interface: "MPICH",
            world: 0x4400_0000,
            byte: 0x4c00_010d,
            errors_return: 0x5400_0001,
            status_ignore: 1,
            thread_multiple: 3,
        });
    }
    Err(format!("it is {version:?}, whose binary interface is unknown"))
}

impl Table {
    /// Converts an error code of MPI to an error with MPI's text.
    pub(crate) fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // Larger than MPI_MAX_ERROR_STRING of any library.
        let mut text = vec![0u8; 1 << 14];
        let mut len = 0;
        // SAFETY: the buffer is large enough.
        unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &raw mut len) };
        let len = text.iter().position(|&b| b == 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..len]).split_whitespace().collect::<Vec<_>>().join(" ");
        Err(Error::new(Kind::Mpi, format!("{what}: {text}")))
    }

    /// Initializes MPI for concurrent use by several threads, unless something else in this process has.
    pub(crate) fn start(&self) -> Result<()> {
        let (mut before, mut after, mut threads) = (0, 0, 0);
        let multiple = self.constants.thread_multiple;
        // SAFETY: these may be called at any time; MPI is initialized only if it is not yet, and null arguments are
        // valid.
        unsafe {
            self.check("MPI_Finalized", (self.finalized)(&raw mut after))?;
            if after != 0 {
                return Err(Error::new(
                    Kind::FailedPrecondition,
                    "MPI was finalized in this process and cannot be initialized again",
                ));
            }
            self.check("MPI_Initialized", (self.initialized)(&raw mut before))?;
            if before == 0 {
                let (count, arguments) = (std::ptr::null_mut(), std::ptr::null_mut());
                let code = (self.init_thread)(count, arguments, multiple, &raw mut threads);
                self.check("MPI_Init_thread", code)?;
            } else {
                self.check("MPI_Query_thread", (self.query_thread)(&raw mut threads))?;
            }
        }
        if threads != multiple {
            return Err(Error::new(
                Kind::NoLibrary,
                format!(
                    "{} ({}) does not support concurrent use by several threads (MPI_THREAD_MULTIPLE), which shardax \
                     needs",
                    self.version, self.path
                ),
            ));
        }
        Ok(())
    }

    /// Makes errors of a communicator return instead of ending the job.
    ///
    /// # Safety
    /// `comm` is a live communicator.
    pub(crate) unsafe fn return_errors(&self, comm: Handle) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.comm_set_errhandler)(comm, self.constants.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    /// Returns true if a request is done; it is null afterwards.
    ///
    /// # Safety
    /// `request` is live or null, and so is the memory that it reads and writes.
    pub(crate) unsafe fn is_done(&self, request: &mut Handle) -> Result<bool> {
        let mut done = 0;
        // SAFETY: promised by the caller; the status is the interface's constant for ignoring it.
        let code = unsafe { (self.test)(request, &raw mut done, self.constants.status_ignore as *mut c_void) };
        self.check("MPI_Test", code)?;
        Ok(done != 0)
    }
}
