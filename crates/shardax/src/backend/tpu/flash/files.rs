//! Kernels that JAX exported for certain shapes, found by name in a folder (`tools/export/attention.py`).

use std::path::{Path, PathBuf};

use crate::config;
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::constants::full_dtype;
use crate::ops::primitive::attention::{Attention, PresentOperands};

/// Files of exported functions.
pub struct ExportedFile;

/// Calls the function in a file. The layer of exports implements this trait.
pub trait CallFile {
    /// Lowers a call with these arguments. Fails if the file cannot be read, or is for other types.
    fn call(path: &Path, cx: &mut Lowering, args: &[Value]) -> Result<Vec<Value>>;
}

/// The sizes of an attention for which files exist.
struct Sizes {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    key_heads: usize,
    depth: usize,
}

/// Finds the file for attention of these operands, and returns it with their sizes.
fn find(of: &Attention, cx: &Lowering, args: &[Value], suffix: &str) -> Option<(PathBuf, Sizes)> {
    // The name of the file contains the variant and the sizes; other variants have no files.
    let folder = config::attention_kernels().filter(|_| cx.platform == Platform::Tpu)?;
    let [q, k, v] = [0, 1, 2].map(|i| cx.aval(args[i]));
    let rank = q.rank();
    let sizes = Sizes {
        batch: q.shape[..rank - 3].iter().product(),
        queries: q.shape[rank - 3],
        keys: k.shape[rank - 3],
        heads: q.shape[rank - 2],
        key_heads: k.shape[rank - 2],
        depth: q.shape[rank - 1],
    };
    let [before, after] = of.window.limits();
    let masks = match (before, after) {
        (None, None) => String::new(),
        (None, Some(0)) => "_causal".to_owned(),
        (Some(n), Some(0)) => format!("_causal_window{n}"),
        _ => return None,
    };
    let is_usual = (of.factor() * (sizes.depth as f64).sqrt() - 1.0).abs() < 1e-6;
    if of.present != PresentOperands::default() || of.cap().is_some() || !is_usual || v.shape[rank - 1] != sizes.depth {
        return None;
    }
    let Sizes { batch, queries, keys, heads, key_heads, depth } = sizes;
    let name = format!("attention_{}_{batch}x{queries}x{heads}x{depth}_{keys}x{key_heads}{masks}{suffix}.jax", q.dtype);
    let path = folder.join(name);
    path.is_file().then_some((path, sizes))
}

impl Sizes {
    /// The shapes of the queries, of the keys, and of the logsumexp.
    fn shapes(&self) -> [Vec<usize>; 3] {
        [
            vec![self.batch, self.queries, self.heads, self.depth],
            vec![self.batch, self.keys, self.key_heads, self.depth],
            vec![self.batch, self.heads, self.queries],
        ]
    }
}

/// Lowers attention to the kernel in a file, if there is one.
pub(super) fn forward(of: &Attention, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Option<Vec<Value>>> {
    let Some((path, sizes)) = find(of, cx, args, "") else { return Ok(None) };
    let [q, k, _] = sizes.shapes();
    let operands = cx.expand(args, |x| Ok(vec![x[0].reshape(&q[..]), x[1].reshape(&k[..]), x[2].reshape(&k[..])]))?;
    let results = ExportedFile::call(&path, cx, &operands)?;
    let shapes: Vec<_> = outs.iter().map(|out| out.shape.clone()).collect();
    let after = cx.expand(&results, |results| {
        let mut reshaped: Vec<_> = results.iter().zip(&shapes).map(|(x, shape)| x.reshape(&shape[..])).collect();
        reshaped.extend(shapes.get(2).map(|shape| full_dtype(&shape[..], 1.0, DType::F32)));
        Ok(reshaped)
    });
    after.map(Some)
}

/// Lowers the gradient of attention to the kernel in a file, if there is one. `n` is the number of attention's
/// operands.
pub(super) fn backward(
    of: &Attention,
    n: usize,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Result<Option<Vec<Value>>> {
    let Some((path, sizes)) = find(of, cx, args, "_gradient") else { return Ok(None) };
    let [q, k, rows] = sizes.shapes();
    let operands = cx.expand(args, |x| {
        let lse = (&x[n + 1] + x[n + 2].log()).reshape(&rows[..]);
        let [q, ct, y] = [&x[0], &x[n + 3], &x[n]].map(|x| x.reshape(&q[..]));
        Ok(vec![q, x[1].reshape(&k[..]), x[2].reshape(&k[..]), y, lse, ct])
    })?;
    let results = ExportedFile::call(&path, cx, &operands)?;
    let shapes: Vec<_> = outs.iter().map(|out| out.shape.clone()).collect();
    let after = cx
        .expand(&results, |results| Ok(results.iter().zip(&shapes).map(|(x, shape)| x.reshape(&shape[..])).collect()));
    after.map(Some)
}
