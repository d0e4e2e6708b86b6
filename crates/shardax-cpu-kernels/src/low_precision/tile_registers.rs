//! The instructions of AMX. Their intrinsics are not stable in Rust.
#![expect(unsafe_code, reason = "instructions that a processor may lack are called")]

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::COLUMNS;
use super::amx::{STEP, Sums, TileProduct, WORDS};

/// The permission to use the registers. A value exists only where the processor has them and AVX-512, and Linux saves them.
#[derive(Clone, Copy)]
pub(crate) struct TileRegisters(());

/// Returns the permission, which a process must request from Linux once.
pub(crate) fn tile_registers() -> Option<TileRegisters> {
    static IS_PERMITTED: OnceLock<bool> = OnceLock::new();
    IS_PERMITTED.get_or_init(|| has_instructions() && request_registers()).then_some(TileRegisters(()))
}

/// Returns `true` if the processor has AVX-512 and tile registers with products of bf16 and of int8.
fn has_instructions() -> bool {
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bw") {
        return false;
    }
    // SAFETY: all processors with AVX-512 have this leaf. Later versions of Rust need no `unsafe`.
    #[allow(unused_unsafe)]
    let features = unsafe { __cpuid_count(7, 0) };
    features.edx & BF16_TILE_INT8 == BF16_TILE_INT8
}

/// Requests the registers for all threads of the process. Older versions of Linux return an error.
fn request_registers() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call without pointers, which changes no other state of the process.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA, out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// The sizes of the eight registers.
#[repr(C, align(64))]
struct Sizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

pub(crate) const REGISTERS: usize = 8;

/// Registers of a thread that have sizes. They are released when it is dropped, so that Linux need not save them.
pub(crate) struct Configured(());

impl TileRegisters {
    /// Gives the registers of the thread these numbers of rows, and of words in a row: 16 at most, more are read as 16.
    pub(crate) fn configure(self, sizes_in_words: [[usize; 2]; REGISTERS]) -> Configured {
        let mut sizes = Sizes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (register, [rows, words]) in sizes_in_words.into_iter().enumerate() {
            sizes.rows[register] = rows.clamp(1, WORDS) as u8;
            sizes.row_bytes[register] = 4 * words.clamp(1, WORDS) as u16;
        }
        // SAFETY: the processor has the registers, and the sizes are valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const sizes, options(nostack, readonly)) };
        Configured(())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the processor has the registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Products of bf16.
#[derive(Clone, Copy)]
pub(super) struct Bf16Tiles(TileRegisters);

/// Products of int8.
#[derive(Clone, Copy)]
pub(super) struct Int8Tiles(TileRegisters);

/// Multiplies steps by this instruction. Each register has 16 rows of 64 bytes. A row of the left operand's steps fills one register's
/// row, and a row of the right operand's steps and of the sums fills the rows of two registers.
macro_rules! multiply_steps {
    ($instruction:literal, $left:expr, $right:expr, $sums:expr) => {{
        const LEFT_HALF: usize = STEP / 2 * 4;
        const SUMS_HALF: usize = WORDS * COLUMNS * 4;
        let steps = $left.len();
        if steps == 0 || steps != $right.len() {
            return;
        }
        // SAFETY: the registers are configured, operands have this number of steps, and sums four registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{right} + {wide}]",
                "tileloadd tmm4, [{left} + {narrow}]",
                "tileloadd tmm7, [{right} + {wide} + 64]",
                concat!($instruction, " tmm0, tmm4, tmm6"),
                "tileloadd tmm5, [{left} + {narrow} + {left_half}]",
                concat!($instruction, " tmm1, tmm4, tmm7"),
                "add {left}, {step}",
                "add {right}, {step}",
                concat!($instruction, " tmm2, tmm5, tmm6"),
                concat!($instruction, " tmm3, tmm5, tmm7"),
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {wide}], tmm0",
                "tilestored [{sums} + {wide} + 64], tmm1",
                "tilestored [{sums} + {wide} + {sums_half}], tmm2",
                "tilestored [{sums} + {wide} + {sums_half} + 64], tmm3",
                left = inout(reg) $left.as_ptr() => _,
                right = inout(reg) $right.as_ptr() => _,
                steps = inout(reg) steps => _,
                sums = in(reg) $sums.0.as_mut_ptr(),
                narrow = in(reg) 64usize,
                wide = in(reg) 128usize,
                left_half = const LEFT_HALF,
                sums_half = const SUMS_HALF,
                step = const STEP * 4,
                options(nostack)
            );
        }
    }};
}

impl Bf16Tiles {
    pub fn new(registers: TileRegisters) -> Self {
        Bf16Tiles(registers)
    }
}

impl TileProduct<f32> for Bf16Tiles {
    fn configure(self) -> Configured {
        self.0.configure([[WORDS; 2]; REGISTERS])
    }

    fn multiply(self, left: &[[u32; STEP]], right: &[[u32; STEP]], sums: &mut Sums<f32>) {
        multiply_steps!("tdpbf16ps", left, right, sums);
    }
}

impl Int8Tiles {
    pub fn new(registers: TileRegisters) -> Self {
        Int8Tiles(registers)
    }
}

impl TileProduct<i32> for Int8Tiles {
    fn configure(self) -> Configured {
        self.0.configure([[WORDS; 2]; REGISTERS])
    }

    fn multiply(self, left: &[[u32; STEP]], right: &[[u32; STEP]], sums: &mut Sums<i32>) {
        multiply_steps!("tdpbssd", left, right, sums);
    }
}
