//! Discrete Fourier transforms over the last dimensions.

use smallvec::{SmallVec, smallvec};

use super::unary::CONJ;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::select::where_;
use crate::rank_promotion;
use crate::shape::Shape;

/// The kind of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FftKind {
    /// Complex to complex.
    Fft,
    /// The inverse, divided by the number of elements.
    Ifft,
    /// Real to the half of the spectrum that is not redundant.
    Rfft,
    /// The inverse of that, divided by the number of elements.
    Irfft,
}

/// The transform of the last one to three dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fft {
    pub kind: FftKind,
    /// The sizes of the transformed dimensions, before halving.
    pub lengths: SmallVec<[usize; 3]>,
}

impl Fft {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }

    /// The multiplicity of each element of the half spectrum: 1 for the first, and for the last if the size is even,
    /// else 2.
    fn weights(&self, real: DType) -> Array {
        let n = self.lengths.last().copied().unwrap_or(1);
        let half = n / 2 + 1;
        let place = lax::iota(DType::I32, &[half], 0);
        let is_own = match n % 2 {
            0 => place.equal(0) | place.equal(half as i32 - 1),
            _ => place.equal(0),
        };
        where_(is_own, Array::literal(Scalar::Int(1), real, false), Array::literal(Scalar::Int(2), real, false))
    }

    fn elements(&self) -> f64 {
        self.lengths.iter().map(|&n| n as f64).product()
    }
}

impl Primitive for Fft {
    fn name(&self) -> &'static str {
        "fft"
    }

    fn print_params(&self) -> String {
        format!("fft_type={:?} fft_lengths={:?}", self.kind, self.lengths.as_slice())
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let x = &args[0];
        // The operand of an inverse real transform is half a spectrum.
        let (is_accepted, result) = match (self.kind, x.dtype) {
            (FftKind::Rfft, DType::F32) => (true, DType::Complex64),
            (FftKind::Rfft, DType::F64) => (true, DType::Complex128),
            (FftKind::Rfft, other) => (false, other),
            (FftKind::Irfft, dtype) => (dtype.is_complex(), dtype.real()),
            (_, dtype) => (dtype.is_complex(), dtype),
        };
        if !is_accepted {
            return Err(err!(Type, "{:?} does not accept {x}", self.kind)
                .help("use the functions of `fft`, which convert their operands"));
        }
        let mut sizes: SmallVec<[usize; 3]> = self.lengths.clone();
        let last_dim = sizes.len() - 1;
        let (length, half) = (sizes[last_dim], sizes[last_dim] / 2 + 1);
        if self.kind == FftKind::Irfft {
            sizes[last_dim] = half;
        }
        if !x.shape.ends_with(&sizes) || length == 0 {
            return Err(err!(Value, "{:?} of {x}: the last dimensions must be {sizes:?}, none of them 0", self.kind)
                .help("use the functions of `fft`, which pad and cut to the requested sizes"));
        }
        let mut shape: Shape = x.shape.clone();
        if let Some(n) = shape.last_mut() {
            *n = match self.kind {
                FftKind::Rfft => half,
                _ => length,
            };
        }
        Ok(smallvec![Aval { vma: x.vma.clone(), weak: x.weak, ..Aval::new(result, shape) }.strip_weak_type()])
    }

    /// Five per element and halving of the lengths, by convention.
    fn flops(&self, args: &[Aval], outs: &[Aval]) -> Flops {
        let elements = args[0].size().max(outs[0].size()) as f64;
        let length: f64 = self.lengths.iter().map(|&n| n as f64).product();
        Flops::from_matmuls(5.0 * elements * length.max(1.0).log2())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if outs[0].size() == 0 {
            return Ok(vec![cx.constant(Scalar::Int(0), &outs[0])]);
        }
        let name = match self.kind {
            FftKind::Fft => "FFT",
            FftKind::Ifft => "IFFT",
            FftKind::Rfft => "RFFT",
            FftKind::Irfft => "IRFFT",
        };
        let attrs = format!("fft_type = #stablehlo<fft_type {name}>, fft_length = {}", ints(&self.lengths));
        // The transformed dimensions must not be split over devices.
        let rank = outs[0].rank();
        let transformed: Vec<usize> = (rank - self.lengths.len()..rank).collect();
        let x = cx.with_replicated_dims(args[0], &transformed);
        let y = cx.op("stablehlo.fft", &[x], &attrs, &outs[0]);
        Ok(vec![cx.with_replicated_dims(y, &transformed)])
    }

    /// The transform is linear.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    /// The matrix of a transform is symmetric. In a half spectrum, each element also stands for its conjugate.
    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let _ranks = rank_promotion::allow();
        let ct = cts[0].as_ref().map(|ct| match self.kind {
            FftKind::Fft | FftKind::Ifft => self.apply(ct),
            FftKind::Rfft => {
                let scaled = CONJ.apply(ct) / self.weights(ct.dtype().real()).astype(ct.dtype());
                let (last, outer) = self.lengths.split_last().unwrap_or((&1, &[]));
                let summed = match outer {
                    [] => scaled,
                    outer => over_outer(&scaled, outer),
                };
                Fft { kind: FftKind::Irfft, lengths: smallvec![*last] }.apply(&summed) * self.elements()
            }
            FftKind::Irfft => {
                let spectrum = Fft { kind: FftKind::Rfft, lengths: self.lengths.clone() }.apply(ct);
                let weights = self.weights(ct.dtype()) / self.elements();
                CONJ.apply(&(weights.astype(spectrum.dtype()) * spectrum))
            }
        });
        Ok(vec![ct])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![self.apply(&axis.moved(&args[0], dims[0], 0))], vec![Some(0)]))
    }
}

/// The inverse transform of the dimensions of these sizes before the last one.
fn over_outer(x: &Array, outer: &[usize]) -> Array {
    let first_outer = (x.ndim() - 1 - outer.len()) as i32;
    let turned = x.moveaxis(-1, first_outer);
    Fft { kind: FftKind::Ifft, lengths: outer.into() }.apply(&turned).moveaxis(first_outer, -1)
}
