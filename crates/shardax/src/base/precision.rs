//! The precision of float32 matrix multiplications on accelerators, and its default.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::error::{Result, err};
use crate::local::{Guard, Guarded, GuardedKey};

/// The precision of matrix multiplications and convolutions (JAX's `jax.lax.Precision`).
///
/// It trades speed for accuracy on accelerators, because their fast units round float32 operands to fewer bits. On a
/// CPU all precisions are equal.
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
    /// An algorithm for matrix multiplications. Convolutions do not support it.
    Algorithm(DotAlgorithmPreset),
}

macro_rules! presets {
    ($($(#[$doc:meta])* $variant:ident $name:literal;)*) => {
        /// The algorithm of a matrix multiplication (JAX's `DotAlgorithmPreset`). It consists of the types of the
        /// operands' parts and of the sums, and the number of products.
        ///
        /// Operands of other types are converted. The device determines the supported algorithms. An unsupported one is
        /// an error when a program is lowered for CPU, and when it is compiled for other platforms. On CPU the
        /// algorithms with bfloat16 parts compute with unrounded float32 operands, as in JAX.
        ///
        /// ```
        /// # use shardax::prelude::*;
        /// # use shardax::lax::{DotAlgorithmPreset, DotOptions, Precision};
        /// let x = full([2, 2], 0.1f32);
        /// let half = DotOptions::new().precision(Precision::Algorithm(DotAlgorithmPreset::F16F16F16)).matmul(&x, &x);
        /// assert_eq!(half.dtype(), DType::F32);
        /// assert!((half.max(..).item::<f32>()? - 0.02).abs() > 1e-7);
        /// # Ok::<(), shardax::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DotAlgorithmPreset {
            $($(#[$doc])* $variant,)*
        }

        impl DotAlgorithmPreset {
            const ALL: &[DotAlgorithmPreset] = &[$(DotAlgorithmPreset::$variant),*];

            /// Returns JAX's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(DotAlgorithmPreset::$variant => $name,)*
                }
            }
        }

        /// JAX's names.
        const NAMES: &[(&str, Precision)] = &[
            ("default", Precision::Default),
            ("high", Precision::High),
            ("highest", Precision::Highest),
            ("fastest", Precision::Default),
            ("bfloat16", Precision::Default),
            ("bfloat16_3x", Precision::High),
            ("tensorfloat32", Precision::High),
            ("float32", Precision::Highest),
            $(($name, Precision::Algorithm(DotAlgorithmPreset::$variant)),)*
        ];
    };
}

presets! {
    /// Float16 products, summed in float16.
    F16F16F16 "F16_F16_F16";
    /// Float16 products, summed in float32.
    F16F16F32 "F16_F16_F32";
    /// Bfloat16 products, summed in bfloat16.
    Bf16Bf16Bf16 "BF16_BF16_BF16";
    /// Bfloat16 products, summed in float32.
    Bf16Bf16F32 "BF16_BF16_F32";
    /// Three bfloat16 products for each float32 product.
    Bf16Bf16F32X3 "BF16_BF16_F32_X3";
    /// Six bfloat16 products for each float32 product.
    Bf16Bf16F32X6 "BF16_BF16_F32_X6";
    /// Nine bfloat16 products for each float32 product.
    Bf16Bf16F32X9 "BF16_BF16_F32_X9";
    /// TensorFloat-32 products, summed in float32.
    Tf32Tf32F32 "TF32_TF32_F32";
    /// Three TensorFloat-32 products for each float32 product.
    Tf32Tf32F32X3 "TF32_TF32_F32_X3";
    /// Float32.
    F32F32F32 "F32_F32_F32";
    /// Float64.
    F64F64F64 "F64_F64_F64";
}

impl NamedOption for Precision {
    const KIND: &'static str = "precision";
    const NAMES: &'static [(&'static str, Self)] = NAMES;
}

impl Precision {
    /// Parses one of JAX's names: `default`, `bfloat16` or `fastest`; `high`, `bfloat16_3x` or `tensorfloat32`;
    /// `highest` or `float32`; or the name of an algorithm, such as `BF16_BF16_F32_X3`.
    ///
    /// # Errors
    /// Returns an error for any other name.
    pub fn from_name(name: &str) -> Result<Precision> {
        match NAMES.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
            Some((_, precision)) => Ok(*precision),
            None => Err(err!(Value, "Precision value must be one of default, high and highest, got {name:?}")
                .help("other names for them are fastest, bfloat16, bfloat16_3x, tensorfloat32 and float32; algorithms have names such as BF16_BF16_F32_X3")),
        }
    }

    /// The name in StableHLO.
    fn mlir(self) -> &'static str {
        match self {
            Precision::Default | Precision::Algorithm(_) => "DEFAULT",
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

// A guard's precision has priority over the precision of the process, and holds on one thread only.
thread_local! {
    static THREAD: Guarded<Choice<Precision>> = const { Guarded::new() };
}

/// Restores the previous precision when dropped.
#[must_use = "the precision holds only while the guard lives"]
pub struct PrecisionGuard {
    _guard: Guard<Choice<Precision>>,
}

/// Sets the default precision of matrix multiplications on this thread until the guard is dropped (JAX's context
/// manager of that name). A function compiled with another precision is compiled again.
///
/// The precision is a [`Precision`] or JAX's text for one. While the guard of an unknown text lives, matrix
/// multiplications and convolutions fail with an error that lists the names.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::default_matmul_precision;
/// let _precise = default_matmul_precision("highest");
/// let lowered = jit(|x: Array| x.dot(&x)).lower(ones([2, 2]))?;
/// assert!(lowered.as_text().contains("precision HIGHEST"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn default_matmul_precision(precision: impl IntoChoice<Precision>) -> PrecisionGuard {
    PrecisionGuard { _guard: THREAD.guard(precision.into_choice()) }
}

/// Sets the precision of the process.
pub(crate) fn set_of_process(precision: Option<Precision>) {
    PROCESS.store(precision.map_or(0, number), Relaxed);
}

/// A number from 1 on for each precision.
fn number(precision: Precision) -> u8 {
    match precision {
        Precision::Default => 1,
        Precision::High => 2,
        Precision::Highest => 3,
        Precision::Algorithm(preset) => 4 + preset as u8,
    }
}

/// The default precision, or the text of a guard that names none.
pub(crate) fn current() -> Option<Choice<Precision>> {
    THREAD.with_last(|precision| precision.copied()).or_else(|| of_process().map(Choice::Value))
}

fn of_process() -> Option<Precision> {
    match PROCESS.load(Relaxed) {
        1 => Some(Precision::Default),
        2 => Some(Precision::High),
        3 => Some(Precision::Highest),
        n => DotAlgorithmPreset::ALL.get(usize::from(n).checked_sub(4)?).copied().map(Precision::Algorithm),
    }
}

/// Returns the requested precision, or else the default. `function` names the function in errors.
///
/// # Errors
/// Returns an error for a text that names no precision.
pub(crate) fn resolved(requested: Option<Choice<Precision>>, function: &str) -> Result<Option<Precision>> {
    requested.or_else(current).map(|precision| precision.value(function)).transpose()
}
