//! Lowering of padding and slicing.

use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::shape::Shape;

/// The padding of a dimension: before it, after it, and between its elements. Negative padding at an end removes elements.
pub(crate) type Padding = (i64, i64, i64);

/// Returns the size of a dimension of `n` elements after padding.
fn padded(n: usize, (low, high, interior): Padding) -> usize {
    let n = n as i64;
    (n + low + high + interior * (n - 1).max(0)).max(0) as usize
}

/// Returns `true` for interior padding with a negative edge.
fn cuts_between_elements(&(low, high, interior): &Padding) -> bool {
    interior > 0 && (low < 0 || high < 0)
}

impl Lowering {
    /// Pads `x` with `value`, with a [`Padding`] for each dimension.
    pub(crate) fn pad(&mut self, x: Value, value: Value, config: &[Padding]) -> Value {
        if config.iter().all(|c| *c == (0, 0, 0)) {
            return x;
        }
        // The partitioner aborts the process for interior padding with a negative edge, so the edge is cut by a
        // separate slice.
        if self.has_quirk("interior-padding-with-cut-edges") && config.iter().any(cuts_between_elements) {
            let without_cuts: Vec<Padding> = config
                .iter()
                .map(|c| if cuts_between_elements(c) { (c.0.max(0), c.1.max(0), c.2) } else { *c })
                .collect();
            let x = self.pad(x, value, &without_cuts);
            let (start, limit): (Vec<_>, Vec<_>) = config
                .iter()
                .zip(self.shape(x).clone())
                .map(|(c, n)| {
                    if cuts_between_elements(c) { ((-c.0).max(0) as usize, n - (-c.1).max(0) as usize) } else { (0, n) }
                })
                .unzip();
            return self.slice(x, &start, &limit, &vec![1; config.len()]);
        }
        let low: Vec<i64> = config.iter().map(|c| c.0).collect();
        let high: Vec<i64> = config.iter().map(|c| c.1).collect();
        let interior: Vec<i64> = config.iter().map(|c| c.2).collect();
        let attrs = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            ints(&low),
            ints(&high),
            ints(&interior)
        );
        let shape: Shape = self.shape(x).iter().zip(config).map(|(&n, c)| padded(n, *c)).collect();
        let out = Aval::new(self.dtype(x), shape);
        self.op("stablehlo.pad", &[x, value], &attrs, &out)
    }

    /// Slices the elements of `x` from `start` to `limit` in steps of `strides`.
    pub(crate) fn slice(&mut self, x: Value, start: &[usize], limit: &[usize], strides: &[usize]) -> Value {
        let attrs =
            format!("start_indices = {}, limit_indices = {}, strides = {}", ints(start), ints(limit), ints(strides));
        let shape: Shape =
            start.iter().zip(limit).zip(strides).map(|((s, l), stride)| (l - s).div_ceil(*stride)).collect();
        let out = Aval::new(self.dtype(x), shape);
        self.op("stablehlo.slice", &[x], &attrs, &out)
    }
}
