//! Chooses the kernel of a convolution of f32, or of half precision in f32.
//!
//! The gradient with respect to a filter is a convolution too: the image is the operand, the cotangent is the window,
//! and each position of the window computes one element of the filter.

use shardax_cpu_kernels::{MIN_PATCHES, SPATIAL, is_winograd};

use super::{convert, filter_window, is_always_used, is_enabled, is_worth, limits, reshape, transpose, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::conv::{ConvGeneralDilated, Spec};
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::primitive::window::WindowDim;
use crate::precision::Precision;
use crate::shape::size;

/// A convolution, and the types of its operands and its result.
pub(super) struct Conv<'a> {
    pub conv: &'a ConvGeneralDilated,
    pub lhs: Aval,
    pub rhs: Aval,
    pub out: &'a Aval,
}

/// Lowers the convolution to a kernel, if it is worthwhile.
pub(crate) fn lower(conv: &ConvGeneralDilated, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Value>> {
    let wide = out.with_dtype(widened(out.dtype));
    let of = Conv { conv, lhs: cx.aval(args[0]), rhs: cx.aval(args[1]), out: &wide };
    let is_known = (1..=SPATIAL).contains(&conv.window.len())
        && wide.dtype == DType::F32
        && [&of.lhs, &of.rhs, out].iter().all(|aval| aval.dtype == out.dtype && aval.size() > 0);
    if !is_known || !is_enabled(cx) {
        return Ok(None);
    }
    if of.is_matmul() && conv.batch_group_count == 1 && conv.feature_group_count == 1 {
        return of.matmul(cx, args).map(Some);
    }
    let Some(target) = of.target() else { return Ok(None) };
    let args = [args[0], args[1]].map(|v| convert(cx, v, DType::F32));
    let result = match target {
        filter_window::CONVOLUTION | filter_window::WINOGRAD => {
            filter_window::lower_convolution(target, &of, cx, &args)
        }
        filter_window::GROUPS => filter_window::lower_groups(&of, cx, &args),
        filter_window::GROUPS_GRADIENT => filter_window::lower_groups_gradient(&of, cx, &args),
        target => filter_window::lower(target, &of, cx, &args),
    };
    Ok(Some(convert(cx, result, out.dtype)))
}

impl Conv<'_> {
    /// The target of the kernel that computes the convolution, if one is worthwhile.
    fn target(&self) -> Option<&'static str> {
        let Conv { conv, lhs, rhs, out } = self;
        let apart = conv.window.iter().fold(1usize, |n, w| n.saturating_mul(w.base_dilation));
        if self.is_depthwise_gradient() && apart == 1 {
            return is_worth(self.work(), limits::DEPTHWISE).then_some(filter_window::DEPTHWISE);
        }
        if conv.batch_group_count > 1 || conv.feature_group_count > 1 {
            return self.groups_target();
        }
        let patches = lhs.shape[conv.lhs[1]].saturating_mul(self.window());
        let is_filter_gradient = apart == 1
            && self.positions() < self.window()
            && is_worth(self.work(), limits::FILTER_GRADIENT)
            && is_worth(patches, MIN_PATCHES);
        if is_filter_gradient {
            let [images, features, outputs] = [lhs.shape[conv.lhs[1]], lhs.shape[conv.lhs[0]], rhs.shape[conv.rhs[0]]];
            let spatial = [spatial(&out.shape, &conv.out), spatial(&rhs.shape, &conv.rhs)];
            return Some(if self.is_winograd(spatial, images, [features, outputs]) {
                filter_window::WINOGRAD_GRADIENT
            } else {
                filter_window::TARGET
            });
        }
        let [features, outputs] = [lhs.shape[conv.lhs[1]], rhs.shape[conv.rhs[0]]];
        let is_wide = is_always_used() || features.min(outputs) >= limits::CONVOLUTION_FEATURES;
        // With a base dilation there are `apart` convolutions, and each multiplies one in `apart` elements.
        let work = self.work() / apart.saturating_mul(apart);
        let spatial = [spatial(&rhs.shape, &conv.rhs), spatial(&out.shape, &conv.out)];
        let is_winograd = self.is_winograd(spatial, lhs.shape[conv.lhs[0]], [features, outputs]);
        let target = if is_winograd { filter_window::WINOGRAD } else { filter_window::CONVOLUTION };
        (is_wide && is_worth(work, limits::CONVOLUTION)).then_some(target)
    }

    /// The target of a convolution of features in groups, or of the gradient of its filter, if it is worthwhile.
    fn groups_target(&self) -> Option<&'static str> {
        let Conv { conv, lhs, rhs, out } = self;
        let groups = conv.feature_group_count.max(conv.batch_group_count);
        // A plane has as many more elements than outputs as the filter reaches.
        let reaches_far = (0..conv.window.len()).any(|i| {
            let (w, is_gradient) = (conv.window[i], conv.batch_group_count > 1);
            let [outputs, elements] = if is_gradient {
                [rhs.shape[conv.rhs[i + 2]], out.shape[conv.out[i + 2]]]
            } else {
                [out.shape[conv.out[i + 2]], rhs.shape[conv.rhs[i + 2]]]
            };
            let [between_outputs, between_elements] =
                if is_gradient { [w.window_dilation, w.stride] } else { [w.stride, w.window_dilation] };
            (elements - 1).saturating_mul(between_elements) / between_outputs > outputs + limits::GROUPS_REACH
        });
        if reaches_far || !is_worth(self.work(), limits::GROUPS) {
            return None;
        }
        if conv.batch_group_count > 1 {
            let is_gradient = conv.feature_group_count == 1 && conv.window.iter().all(|w| w.base_dilation == 1);
            return is_gradient.then_some(filter_window::GROUPS_GRADIENT);
        }
        // One output for each feature, with the features last, is a sum of products of entire arrays.
        let [features, outputs] = [lhs.shape[conv.lhs[1]], out.shape[conv.out[1]]];
        let is_depthwise_last = [features, outputs] == [groups; 2] && conv.lhs[1] == lhs.rank() - 1;
        let is_sum_of_products = is_depthwise_last && conv.lhs == conv.out && lhs.dtype == DType::F32;
        (!is_sum_of_products).then_some(filter_window::GROUPS)
    }

    /// Returns `true` if Winograd's algorithm takes less time, for a filter and outputs of these spatial dimensions. If
    /// the user requested a precision, sums of products are used instead.
    fn is_winograd(
        &self,
        [filter, size]: [[usize; SPATIAL]; 2],
        images: usize,
        [features, outputs]: [usize; 2],
    ) -> bool {
        let is_fastest = matches!(self.conv.precision, None | Some(Precision::Default));
        let is_dense = self.conv.window.iter().all(|w| w.base_dilation == 1);
        let tiles = size.iter().fold(images, |n, d| n.saturating_mul(d.div_ceil(2)));
        let is_faster = tiles >= limits::WINOGRAD_TILES
            && features.min(outputs) >= limits::WINOGRAD_FEATURES[0]
            && features.max(outputs) >= limits::WINOGRAD_FEATURES[1];
        is_fastest
            && is_dense
            && (is_faster || is_always_used())
            && is_winograd(&filter_window::window_of(self, filter), size, features, outputs)
    }

    /// The number of elements of the window.
    fn window(&self) -> usize {
        self.conv.rhs[2..].iter().map(|&d| self.rhs.shape[d]).product()
    }

    /// The number of positions of the window.
    fn positions(&self) -> usize {
        self.conv.out[2..].iter().map(|&d| self.out.shape[d]).product()
    }

    /// The number of multiply-adds.
    fn work(&self) -> usize {
        size(&self.out.shape).saturating_mul(self.rhs.size() / self.rhs.shape[self.conv.rhs[0]])
    }

    /// Returns `true` if the convolution is the gradient of one filter for each feature, with one batch group each.
    fn is_depthwise_gradient(&self) -> bool {
        let features = self.lhs.shape[self.conv.lhs[0]];
        features > 1 && [self.conv.batch_group_count, self.rhs.shape[self.conv.rhs[0]]] == [features; 2]
    }

    /// Returns `true` if the window is a single element, or the entire operand, and never covers padding.
    fn is_matmul(&self) -> bool {
        let is_plain = self.conv.window.iter().all(|w| *w == WindowDim::new(1));
        is_plain && (self.window() == 1 || self.positions() == 1)
    }

    /// Writes the convolution as a matmul, over features and the window.
    fn matmul(&self, cx: &mut Lowering, args: &[Value]) -> Result<Value> {
        let (lhs, rhs, out) = (&self.conv.lhs, &self.conv.rhs, &self.conv.out);
        let mut kernel = args[1];
        // The contracted dimensions, and the positions of the operand's other dimensions in the result.
        let (mut contract, mut places) = (vec![(lhs[1], rhs[1])], vec![(lhs[0], out[0])]);
        let spatial = lhs[2..].iter().zip(&rhs[2..]).zip(&out[2..]);
        if self.window() == 1 {
            let (o, i) = (rhs[0], rhs[1]);
            kernel = reshape(cx, kernel, &[o.min(i), o.max(i)].map(|d| self.rhs.shape[d]));
            contract = vec![(lhs[1], usize::from(i > o))];
            places.extend(spatial.map(|((&l, _), &to)| (l, to)));
        } else {
            contract.extend(spatial.map(|((&l, &r), _)| (l, r)));
        }
        // Contracts in the order of memory, so that nothing is transposed if both operands have the same order.
        contract.sort_unstable();
        places.sort_unstable();
        let dot = DotGeneral {
            lhs_contract: contract.iter().map(|c| c.0).collect(),
            rhs_contract: contract.iter().map(|c| c.1).collect(),
            lhs_batch: Default::default(),
            rhs_batch: Default::default(),
            preferred: None,
            precision: self.conv.precision,
            out: None,
            is_rhs_sparse: false,
        };
        let product = dot.infer(&[self.lhs.clone(), cx.aval(kernel)])?;
        let product = cx.apply(&dot, &[args[0], kernel], &product)?[0];
        let mut places: Vec<usize> = places.into_iter().map(|p| p.1).chain([out[1]]).collect();
        // If the window is the entire operand, there is one position.
        let single: Vec<usize> = (0..out.len()).filter(|d| !places.contains(d)).collect();
        places.extend(single);
        Ok(self.result(cx, product, &places))
    }

    /// Reshapes and transposes `v` to the result. `places` contains, for each dimension of `v`, the corresponding
    /// dimension of the result.
    pub(super) fn result(&self, cx: &mut Lowering, v: Value, places: &[usize]) -> Value {
        let shape: Vec<usize> = places.iter().map(|&d| self.out.shape[d]).collect();
        let v = reshape(cx, v, &shape);
        let order: Vec<usize> = (0..places.len()).filter_map(|d| places.iter().position(|place| *place == d)).collect();
        transpose(cx, v, &order)
    }
}

/// The spatial dimensions; missing dimensions have size 1.
fn spatial(shape: &[usize], spec: &Spec) -> [usize; SPATIAL] {
    let mut sizes = [1; SPATIAL];
    let missing = SPATIAL - spec[2..].len();
    sizes[missing..].iter_mut().zip(&spec[2..]).for_each(|(size, d)| *size = shape[*d]);
    sizes
}

/// The dimensions of a spec with one of the first two (0 or 1) first, then the spatial ones, and the other one last.
pub(super) fn order(spec: &Spec, first: usize) -> Vec<usize> {
    std::iter::once(spec[first]).chain(spec[2..].iter().copied()).chain([spec[1 - first]]).collect()
}

/// The dimensions of an image: the batch, then its channels first or last, and where missing spatial dimensions are inserted.
pub(super) fn image_order(spec: &[usize], is_channels_first: bool) -> (Vec<usize>, usize) {
    if is_channels_first { (spec.to_vec(), 2) } else { ([&spec[..1], &spec[2..], &spec[1..2]].concat(), 1) }
}
