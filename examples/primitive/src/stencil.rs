//! A three-point stencil along the last dimension: bilinear in the values and the weights.

use shardax::prelude::*;
use shardax::primitive::{
    Aval, Avals, AxisSet, BatchAxis, Dims, Lowering, Operand, Outputs, Primitive, SmallVec, Tangents, Value, bind1,
    ints, move_batch, smallvec,
};
use shardax::{Error, ErrorKind};

/// `y[.., i] = w[0] x[.., i - 1] + w[1] x[.., i] + w[2] x[.., i + 1]`, with zeros beyond the ends; `w` has shape `[3]`.
///
/// Both are floating-point arrays of one dtype. With weights of another shape or dtype the result carries an error.
#[track_caller]
pub fn stencil(x: impl Into<Array>, w: impl Into<Array>) -> Array {
    bind1(Stencil, &[x.into(), w.into()])
}

// Parameters would be fields, which are compared to find equal programs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stencil;

impl Stencil {
    /// `x` shifted by one position: `y[i] = x[i - 1]` for 0, `x[i]` for 1, `x[i + 1]` for 2.
    fn shifted(x: &Array, k: usize) -> Array {
        let unit: Vec<f32> = (0..3).map(|i| if i == k { 1.0 } else { 0.0 }).collect();
        stencil(x, array(unit).astype(x.dtype()))
    }
}

impl Primitive for Stencil {
    fn name(&self) -> &'static str {
        "stencil"
    }

    // The type of the result. Errors name the operands' types; `bind` adds the user's line.
    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let (x, w) = (&args[0], &args[1]);
        if x.rank() == 0 || w.shape.as_slice() != [3] {
            return Err(Error::new(ErrorKind::Type, format!("stencil got values {x} and weights {w}"))
                .help("pass values of at least one dimension, and three weights"));
        }
        if !x.dtype.is_float() || x.dtype != w.dtype {
            return Err(Error::new(ErrorKind::Type, format!("stencil got values {x} and weights {w}"))
                .help("convert both to one floating point dtype with `astype`"));
        }
        Ok(smallvec![x.clone().strip_weak_type()])
    }

    // StableHLO in MLIR's generic form: pad, then the weighted sum of three slices. The compiler partitions it,
    // including the exchange of borders.
    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let out = &outs[0];
        let (rank, last) = (out.rank(), out.rank() - 1);
        // Pad the last dimension by one element on each side.
        let zero = cx.constant(shardax::dtype::Scalar::float(0.0), &Aval::scalar(out.dtype));
        let mut shape = out.shape.clone();
        shape[last] += 2;
        let ones = ints(&only_last(rank, 1));
        let none = ints(&only_last(rank, 0));
        let attrs = format!("edge_padding_low = {ones}, edge_padding_high = {ones}, interior_padding = {none}");
        let padded = cx.op("stablehlo.pad", &[args[0], zero], &attrs, &out.with_shape(shape));

        // Add the three neighbors of each element, each times its weight.
        let mut sum = None;
        for k in 0..3 {
            let limit: Vec<usize> = (0..rank).map(|d| out.shape[d] + if d == last { k } else { 0 }).collect();
            let x = slice(cx, padded, &only_last(rank, k), &limit, out);
            let w = slice(cx, args[1], &[k], &[k + 1], &out.with_shape(&[1][..]));
            let w = cx.op("stablehlo.reshape", &[w], "", &Aval::scalar(out.dtype));
            let w = cx.broadcast_in_dim(w, &[], out);
            let term = cx.op("stablehlo.multiply", &[x, w], "", out);
            sum = Some(match sum {
                Some(sum) => cx.op("stablehlo.add", &[sum, term], "", out),
                None => term,
            });
        }
        Ok(sum.into_iter().collect())
    }

    // The product rule. An operand without a tangent contributes nothing.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let of_x = tangents[0].as_ref().map(|t| stencil(t, &args[1]));
        let of_w = tangents[1].as_ref().map(|t| stencil(&args[0], t));
        let tangent = match (of_x, of_w) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        Ok((smallvec![stencil(&args[0], &args[1])], vec![tangent]))
    }

    // Linear in one operand at a time; the other is concrete.
    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        if args[0].is_linear() {
            // A shift to the right is transposed to a shift to the left.
            return Ok(vec![Some(stencil(ct, args[1].value()?.flip(0))), None]);
        }
        let x = args[0].value()?;
        let weight_cts = [0, 1, 2].map(|k| (ct * Stencil::shifted(x, k)).sum(..));
        Ok(vec![None, Some(stack(&weight_cts, 0))])
    }

    // Leading dimensions of the values are batch dimensions anyway. Batched weights are not supported by the primitive,
    // so this rule, which is ordinary code, uses other operations.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let Some(w_dim) = dims[1] else {
            let x = move_batch(&args[0], dims[0], 0, axis.size);
            return Ok((smallvec![stencil(x, &args[1])], vec![Some(0)]));
        };
        let x = move_batch(&args[0], dims[0], 0, axis.size);
        let w = move_batch(&args[1], Some(w_dim), 0, axis.size);
        let mut column = vec![1; x.ndim()];
        column[0] = axis.size;
        let [left, middle, right] =
            [0, 1, 2].map(|k| Stencil::shifted(&x, k) * w.get((Ellipsis, k)).reshape(&column[..]));
        Ok((smallvec![left + middle + right], vec![Some(0)]))
    }

    // The result varies over the axes of the operands. This is the default too; a primitive that communicates would add
    // or remove its axis.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&args[1])])
    }
}

/// Returns `n` for the last dimension, and 0 for the others.
fn only_last(rank: usize, n: usize) -> Vec<usize> {
    let mut sizes = vec![0; rank];
    if let Some(last) = sizes.last_mut() {
        *last = n;
    }
    sizes
}

fn slice(cx: &mut Lowering, x: Value, start: &[usize], limit: &[usize], out: &Aval) -> Value {
    let strides = vec![1; start.len()];
    let attrs =
        format!("start_indices = {}, limit_indices = {}, strides = {}", ints(start), ints(limit), ints(&strides));
    cx.op("stablehlo.slice", &[x], &attrs, out)
}
