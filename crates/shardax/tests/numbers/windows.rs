//! Gradients of maxima and minima of windows, by CPU kernels and by XLA.

use shardax::lax::{Padding, Window};

use super::common::child;
use super::common::quick::one_of;
use super::*;

/// A windowed maximum or minimum.
struct Case {
    is_min: bool,
    shape: &'static [usize],
    window: &'static [usize],
    strides: &'static [usize],
    padding: &'static [(i64, i64)],
    dilation: &'static [usize],
}

impl Case {
    fn reduce(&self, x: &Array) -> Array {
        let padding = Padding::Explicit(self.padding.to_vec());
        let window = Window::new(self.window).strides(self.strides).padding(padding).window_dilation(self.dilation);
        if self.is_min { lax::reduce_window_min(x, window) } else { lax::reduce_window_max(x, window) }
    }

    /// For each window, the index of its element: each is compared with the best one before it, and padding has no index.
    fn selected(&self, x: &[f64], windows: &[usize]) -> Vec<Option<usize>> {
        let worst = if self.is_min { f64::INFINITY } else { f64::NEG_INFINITY };
        let places = (0..windows.iter().product()).map(|window| {
            let position = unravel(window, windows);
            let mut best: Option<(f64, Option<usize>)> = None;
            for element in (0..self.window.iter().product()).map(|element| unravel(element, self.window)) {
                let mut index = Some(0);
                for d in 0..self.shape.len() {
                    let along =
                        (position[d] * self.strides[d] + element[d] * self.dilation[d]) as i64 - self.padding[d].0;
                    let along = usize::try_from(along).ok().filter(|along| *along < self.shape[d]);
                    index = index.zip(along).map(|(index, along)| index * self.shape[d] + along);
                }
                let value = index.map_or(worst, |index| x[index]);
                if !best.is_some_and(|(best, _)| if self.is_min { best <= value } else { best >= value }) {
                    best = Some((value, index));
                }
            }
            best.and_then(|(_, index)| index)
        });
        places.collect()
    }
}

/// The indices of an element of an array of this shape.
fn unravel(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut indices = vec![0; shape.len()];
    for (d, n) in shape.iter().enumerate().rev() {
        (indices[d], index) = (index % n, index / n);
    }
    indices
}

/// Small integers with ties, so that sums are exact in every type.
fn integers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + seed * 31) % 11) as f64 - 5.0).collect()
}

const CASES: [Case; 8] = [
    Case {
        is_min: false,
        shape: &[2, 9, 11, 3],
        window: &[1, 3, 3, 1],
        strides: &[1, 2, 2, 1],
        padding: &[(0, 0); 4],
        dilation: &[1; 4],
    },
    Case {
        is_min: true,
        shape: &[2, 3, 9, 8],
        window: &[1, 1, 3, 3],
        strides: &[1; 4],
        padding: &[(0, 0), (0, 0), (1, 1), (0, 2)],
        dilation: &[1; 4],
    },
    Case {
        is_min: false,
        shape: &[2, 3, 9, 8],
        window: &[1, 1, 3, 2],
        strides: &[1, 1, 2, 3],
        padding: &[(0, 0), (0, 0), (1, 1), (2, 2)],
        dilation: &[1; 4],
    },
    Case {
        is_min: false,
        shape: &[5, 6, 7, 2],
        window: &[3, 2, 3, 1],
        strides: &[2, 1, 2, 1],
        padding: &[(1, 0), (0, 0), (0, 1), (0, 0)],
        dilation: &[1, 2, 2, 1],
    },
    Case {
        is_min: true,
        shape: &[30, 4],
        window: &[5, 1],
        strides: &[2, 1],
        padding: &[(-2, -1), (0, 0)],
        dilation: &[1; 2],
    },
    // Windows of more elements than the portable form slices.
    Case {
        is_min: false,
        shape: &[2, 12, 13, 1],
        window: &[1, 9, 8, 1],
        strides: &[1, 1, 2, 1],
        padding: &[(0, 0), (2, 1), (0, 3), (0, 0)],
        dilation: &[1; 4],
    },
    // No kernel computes windows along four dimensions.
    Case {
        is_min: false,
        shape: &[4, 5, 4, 5],
        window: &[2, 2, 2, 2],
        strides: &[1; 4],
        padding: &[(0, 0); 4],
        dilation: &[1; 4],
    },
    Case {
        is_min: false,
        shape: &[2, 40, 3],
        window: &[1, 3, 1],
        strides: &[1, 4, 1],
        padding: &[(0, 0), (0, 5), (0, 0)],
        dilation: &[1; 3],
    },
];

fn check(case: &Case, dtype: DType) -> Result<()> {
    let elements = integers(case.shape.iter().product(), 1);
    let x = Array::from_vec(elements.clone(), case.shape)?.astype(dtype);
    let windows = case.reduce(&x).shape().to_vec();
    let selected = case.selected(&elements, &windows);
    let weights = integers(selected.len(), 2);
    let mut sums = vec![0.0; elements.len()];
    selected.iter().zip(&weights).for_each(|(index, weight)| {
        if let Some(index) = index {
            sums[*index] += weight;
        }
    });
    let weights = Array::from_vec(weights, &windows)?.astype(dtype);
    let gradient = |x: Array, weights: &Array| grad(|x: Array| (case.reduce(&x) * weights).sum(..)).call(x);
    let found = jit(|x: Array, weights: Array| gradient(x, &weights)).call((&x, &weights))?;
    assert_eq!(floats(&found), sums, "{:?} {dtype}", case.window);
    // The gradient is linear in the weights, and its derivative selects elements.
    let values = integers(elements.len(), 3);
    let factors = Array::from_vec(values.clone(), case.shape)?.astype(dtype);
    let second = |weights: Array| -> Result<Array> { Ok((gradient(x.clone(), &weights)? * &factors).sum(..)) };
    let found = jit(grad(second)).call(&weights)?;
    let expected: Vec<f64> = selected.iter().map(|index| index.map_or(0.0, |index| values[index])).collect();
    assert_eq!(floats(&found), expected, "{:?} {dtype}", case.window);
    // One example after the other.
    let [xs, all_weights] = [&x, &weights].map(|x| stack((x, x * 2), 1));
    let mapped =
        jit(vmap(|x: Array, weights: Array| gradient(x, &weights)).in_axes((1, 1))).call((&xs, &all_weights))?;
    let doubled = sums.iter().copied().chain(sums.iter().map(|sum| sum * 2.0)).collect::<Vec<f64>>();
    assert_eq!(floats(&mapped), doubled, "{:?} {dtype}", case.window);
    Ok(())
}

/// JAX 0.12.0: an element is compared with the best one before it, so that after NaN the next element is the best one.
fn nan() -> Result<()> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = array([1.0, nan, 3.0, 2.0, 2.0, nan, 5.0, -inf, -inf, -inf, 4.0]);
    let gradient = |windows: usize, padding: Padding| {
        let weights = arange(1..windows as i32 + 1).astype(DType::F32);
        // Windows with NaN have a gradient, but no maximum.
        let reduce = move |x: Array| lax::reduce_window_max(x, Window::new([3]).padding(padding.clone()));
        jit(grad(move |x: Array| (reduce(x) * &weights).sum(..))).call(&x)
    };
    assert_eq!(floats(&gradient(9, Padding::Valid)?), [0.0, 0.0, 6.0, 0.0, 0.0, 4.0, 18.0, 8.0, 0.0, 0.0, 9.0]);
    assert_eq!(floats(&gradient(11, Padding::Same)?), [0.0, 1.0, 9.0, 0.0, 0.0, 5.0, 21.0, 9.0, 0.0, 0.0, 21.0]);
    Ok(())
}

#[test]
fn gradients_of_windows() -> Result<()> {
    common::quick::setup();
    nan()?;
    for (i, case) in CASES.iter().enumerate().step_by(one_of(2)) {
        check(case, [DType::F32, DType::F64, DType::Bf16][i % 3])?;
    }
    Ok(())
}

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    nan()?;
    for (i, case) in CASES.iter().enumerate() {
        let x = zeros(case.shape);
        let text = jit(grad(|x: Array| case.reduce(&x).sum(..))).lower(&x)?.as_text().to_string();
        assert_eq!(text.contains("shardax_select_and_scatter_add"), i != 6, "{text}");
        check(case, [DType::F32, DType::F64, DType::Bf16][(i + 1) % 3])?;
    }
    Ok(())
}

#[test]
fn gradients_of_windows_by_cpu_kernels() {
    let mut command = child::command("windows::in_a_process_with_cpu_kernels");
    child::run(command.env("SHARDAX_CPU_KERNELS", "all"));
}
