//! The precision of float32 matrix multiplications on accelerators, and its default.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::error::{Result, err};
use crate::local::{Stack, StackKey};

/// The precision of matrix multiplications and convolutions (JAX's `jax.lax.Precision`).
///
/// It trades speed for accuracy on accelerators, whose fast units round float32 operands to fewer bits. On a CPU
/// all are equal.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{DotOptions, Precision};
/// let x = ones([8, 8]);
/// let y = DotOptions::new().precision(Precision::Highest).matmul(&x, &x);
/// assert_eq!(y.max(..).item::<f32>()?, 8.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// The fastest: operands of bfloat16 on TPU, of TF32 on GPU.
    #[default]
    Default,
    /// Three bfloat16 products on TPU, TF32 on GPU.
    High,
    /// Float32: six bfloat16 products on TPU.
    Highest,
}

impl Precision {
    /// Parses one of JAX's names: `default`, `bfloat16` or `fastest`; `high`, `bfloat16_3x` or
    /// `tensorfloat32`; `highest` or `float32`.
    ///
    /// Fails for any other.
    pub fn from_name(name: &str) -> Result<Precision> {
        match name.to_lowercase().as_str() {
            "default" | "bfloat16" | "fastest" => Ok(Precision::Default),
            "high" | "bfloat16_3x" | "tensorfloat32" => Ok(Precision::High),
            "highest" | "float32" => Ok(Precision::Highest),
            _ => Err(err!(Value, "Precision value must be one of default, high and highest, got {name:?}")
                .help("other names of theirs are fastest, bfloat16, bfloat16_3x, tensorfloat32 and float32")),
        }
    }

    /// The name in StableHLO.
    fn mlir(self) -> &'static str {
        match self {
            Precision::Default => "DEFAULT",
            Precision::High => "HIGH",
            Precision::Highest => "HIGHEST",
        }
    }

    /// The `precision_config` attribute of an operation of two operands.
    pub(crate) fn config(precision: Option<Precision>) -> String {
        let name = precision.unwrap_or_default().mlir();
        format!("precision_config = [#stablehlo<precision {name}>, #stablehlo<precision {name}>]")
    }
}

/// The precision of the process; 0 for none.
static PROCESS: AtomicU8 = AtomicU8::new(0);

thread_local! {
    /// The precisions of the guards that exist, with the number of each.
    static THREAD: Stack<(u64, Precision)> = const { Stack::new() };
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Restores the previous precision when dropped.
#[must_use = "the precision holds only while the guard lives"]
pub struct PrecisionGuard {
    number: u64,
    // Guards belong to the thread that made them.
    not_send: PhantomData<*const ()>,
}

impl Drop for PrecisionGuard {
    fn drop(&mut self) {
        THREAD.with_borrow_mut(|all| all.retain(|(number, _)| *number != self.number));
    }
}

/// Sets the default precision of matrix multiplications on this thread until the guard is dropped (JAX's context
/// manager of that name). A function compiled with another precision is compiled again.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::{default_matmul_precision, lax::Precision};
/// let _precise = default_matmul_precision(Precision::Highest);
/// let lowered = jit(|x: Array| x.dot(&x)).lower(ones([2, 2]))?;
/// assert!(lowered.as_text().contains("precision HIGHEST"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn default_matmul_precision(precision: Precision) -> PrecisionGuard {
    let number = NEXT.replace(NEXT.get() + 1);
    THREAD.with_borrow_mut(|all| all.push((number, precision)));
    PrecisionGuard { number, not_send: PhantomData }
}

/// Sets the precision of the process.
pub(crate) fn set_of_process(precision: Option<Precision>) {
    PROCESS.store(precision.map_or(0, |p| p as u8 + 1), Relaxed);
}

/// The default precision.
pub(crate) fn current() -> Option<Precision> {
    let process = || match PROCESS.load(Relaxed) {
        1 => Some(Precision::Default),
        2 => Some(Precision::High),
        3 => Some(Precision::Highest),
        _ => None,
    };
    THREAD.with_borrow(|all| all.last().map(|(_, precision)| *precision)).or_else(process)
}
