//! The arguments of each public function in a case. The folder `table` has the entries, by subject.

use std::sync::LazyLock;

use shardax::array::IndexItem;
use shardax::fft::{self, FftNorm, FftOptions};
use shardax::image::{self, ResizeMethod, ResizeOptions};
use shardax::lax::{
    ConvOptions, GatherDimensionNumbers, GatherScatterMode, Padding, ScatterDimensionNumbers, ScatterKind,
};
use shardax::nn::{self, Pool, initializers as init};
use shardax::numpy as np;
use shardax::prelude::*;
use shardax::scipy::stats::norm;
use shardax::scipy::{self, special};

/// Operands and parameters.
#[derive(Clone)]
pub struct Case {
    pub x: Array,
    pub y: Array,
    /// Booleans of the shape of `x`.
    pub mask: Array,
    /// Integers of some dtype and shape.
    pub places: Array,
    pub key: Array,
    pub dtype: DType,
    /// An axis, an offset, an exponent, a seed.
    pub i: i32,
    /// A size, a count.
    pub n: usize,
    pub f: f64,
}

impl Case {
    fn both(&self) -> [Array; 2] {
        [self.x.clone(), self.y.clone()]
    }

    /// A shape, as written: it may have negative or enormous sizes.
    fn dims(&self) -> Vec<i64> {
        vec![i64::from(self.i), self.n as i64]
    }

    /// As many numbers as `x` has dimensions, made from the parameters.
    fn sizes(&self) -> Vec<usize> {
        (0..self.x.ndim()).map(|d| if d == 0 { self.n } else { 1 }).collect()
    }

    fn starts(&self) -> Vec<Array> {
        (0..self.x.ndim()).map(|d| if d == 0 { self.places.clone() } else { Array::from(self.i) }).collect()
    }

    fn widths(&self) -> Vec<(usize, usize)> {
        self.sizes().into_iter().map(|n| (n, self.i.unsigned_abs() as usize)).collect()
    }

    /// An index with an entry of each kind, as far as `x` has dimensions.
    fn index(&self) -> Vec<IndexItem> {
        use shardax::IntoIndexItem;
        let slice = Slice::new(i64::from(self.i), self.n as i64, i64::from(self.i));
        let items = [slice.into_index_item(), (&self.places).into_index_item(), self.i.into_index_item()];
        items.into_iter().take(self.x.ndim().max(1)).collect()
    }

    fn permutation(&self) -> Vec<i32> {
        (0..self.x.ndim() as i32).rev().chain((self.i > 5).then_some(self.i)).collect()
    }

    fn transform(&self) -> FftOptions {
        FftOptions::new().axes([self.i]).s([self.n]).norm(FftNorm::Ortho)
    }

    fn padding(&self) -> Padding {
        match self.i {
            0 => Padding::Same,
            -1 => Padding::Valid,
            -2 => Padding::SameLower,
            i => Padding::Explicit(vec![(i64::from(i), i64::MAX); self.x.ndim().saturating_sub(2)]),
        }
    }

    fn window(&self) -> Vec<usize> {
        self.sizes()
    }

    fn mode(&self) -> GatherScatterMode {
        match self.i.rem_euclid(3) {
            0 => GatherScatterMode::Clip,
            1 => GatherScatterMode::FillOrDrop,
            _ => GatherScatterMode::PromiseInBounds,
        }
    }

    fn mapped<T: Tree>(&self, f: impl Fn(Array) -> T) -> Result<T> {
        vmap(f).axis_name("i").call(&self.x)
    }
}

/// The result of a function: arrays, or nothing that is compared.
pub trait Outcome {
    fn results(self) -> Result<Vec<Array>>;
}

impl Outcome for Array {
    fn results(self) -> Result<Vec<Array>> {
        self.check().map(|()| vec![self])
    }
}

impl Outcome for &Array {
    fn results(self) -> Result<Vec<Array>> {
        self.clone().results()
    }
}

impl Outcome for Vec<Array> {
    fn results(self) -> Result<Vec<Array>> {
        self.iter().try_for_each(Array::check).map(|()| self)
    }
}

impl Outcome for (Array, Array) {
    fn results(self) -> Result<Vec<Array>> {
        vec![self.0, self.1].results()
    }
}

impl Outcome for (Array, Array, Array) {
    fn results(self) -> Result<Vec<Array>> {
        vec![self.0, self.1, self.2].results()
    }
}

impl Outcome for () {
    fn results(self) -> Result<Vec<Array>> {
        Ok(Vec::new())
    }
}

impl<T: Outcome> Outcome for Result<T> {
    fn results(self) -> Result<Vec<Array>> {
        self.and_then(T::results)
    }
}

/// The value is not looked at.
fn done<T>(_: T) {}

pub type Call = fn(&Case) -> Result<Vec<Array>>;

macro_rules! table {
    ($($name:literal => |$c:ident| $call:expr;)*) => {
        pub(super) const PART: &[(&str, Call)] = &[$(($name, |$c| Outcome::results($call)),)*];
    };
}

/// Several functions of the same parameters.
macro_rules! same {
    ($c:ident; $($call:expr),*) => {{
        let results: Vec<Result<Vec<Array>>> = vec![$(Outcome::results($call)),*];
        results.into_iter().collect::<Result<Vec<_>>>().map(|results| results.concat())
    }};
}

/// Functions that have no entry, and why.
pub const EXCEPTED: &[(&str, &str)] = &[
    (
        "Array::addressable_data Array::addressable_shards Array::global_shards Array::sharding Array::format Array::devices \
         Array::committed Array::is_fully_addressable Array::is_fully_replicated Array::is_ready Array::is_deleted \
         Array::delete Array::block_until_ready Array::ready Array::view Array::from_slice_on Array::from_bytes_on Array::from_host_buffer \
         Array::with_bytes Array::copy_to_host_async Array::retain Array::with_weak_type \
         array::block_until_ready \
         array::device_get array::visualize_array_sharding",
        "places, not computations: tests/placement.rs and tests/errors",
    ),
    (
        "array::from_dlpack array::to_dlpack array::is_supported_dtype array::live_arrays",
        "memory, not computations: tests/arrays.rs and tests/profiler.rs",
    ),
    (
        "spmd::pmap spmd::shard_map spmd::smap spmd::set_mesh spmd::with_sharding_constraint",
        "functions of functions and meshes: tests/errors/spmd.rs",
    ),
    (
        "Array::broadcast_to_sharded Array::reshape_sharded At::out_sharding numpy::full_sharded spmd::use_abstract_mesh \
         Over::out_sharding numpy::bincount_sharded numpy::segment_sum_sharded",
        "shardings over explicit mesh axes: tests/explicit",
    ),
    (
        "control_flow::custom_jvp control_flow::custom_vjp control_flow::custom_vmap control_flow::sequential_vmap \
         control_flow::custom_linear_solve control_flow::custom_root",
        "functions of functions: tests/control_flow, tests/callbacks, reference cases of solvers",
    ),
    (
        "spmd::assert_equal spmd::broadcast_one_to_all spmd::broadcast_one_to_all_from spmd::process_allgather \
         spmd::process_allgather_tiled spmd::sync_global_devices spmd::global_array_to_host_local_array \
         spmd::host_local_array_to_global_array spmd::reached_preemption_sync_point spmd::wait_at_barrier",
        "values of all processes: tests/processes",
    ),
];

/// Functions of the table below that no reference case calls, and why.
pub const NOT_GOLDEN: &[(&str, &str)] = &[
    (
        "Array::aval Array::error Array::flatten_from Array::from_error Array::from_vec Array::is_traced Array::item \
         Array::nbytes Array::to_f64_vec Array::unstack Array::vma lax::optimization_barrier numpy::allclose",
        "no arithmetic: tests/arrays.rs and the examples in the documentation",
    ),
    ("random::key_impl", "a name: the examples in the documentation"),
    ("Initializer::batch_axis Array::split_n", "with JAX's numbers: tests/basics.rs"),
    ("numpy::finfo numpy::iinfo", "with JAX's values: tests/numbers/limits.rs"),
    ("numpy::histogram2d numpy::histogramdd", "with JAX's numbers: tests/numbers/histograms.rs"),
    ("lax::conv_general_dilated_local", "against a convolution with equal kernels: tests/numbers/local.rs"),
    ("linalg::matrix_norm linalg::vector_norm", "with JAX's numbers: tests/linalg.rs"),
    ("lax::mulhi", "against products of 128 bits: tests/numbers/mulhi.rs"),
    ("lax::sort_key_val", "calls `lax::sort`: the example in the documentation"),
    (
        "linalg::cholesky_update linalg::householder_product linalg::lu_pivots_to_permutation linalg::ormqr \
         linalg::symmetric_product",
        "with JAX's numbers: tests/numbers/factors.rs",
    ),
    ("numpy::mask_indices numpy::trim_zeros", "with JAX's numbers: tests/numbers/trimming.rs"),
    ("lax::scaled_dot", "with JAX's numbers: tests/numbers/groups.rs"),
    ("lax::rng_bit_generator", "with JAX's bits: tests/random.rs"),
    ("nn::attention", "against the formula: tests/numbers/attention.rs; against JAX in shardax-nn"),
    ("nn::constant array::array_of", "constants: the examples in the documentation"),
    (
        "lax::dynamic_slice_in_dim lax::dynamic_update_slice_in_dim lax::scatter At::indices_are_sorted \
         At::subtract numpy::right_shift numpy::subtract random::PRNGKey random::split_n \
         nn::variance_scaling nn::avg_pool nn::min_pool ScanOptions::length linalg::cho_factor",
        "other names or forms of functions that cases call: operators, `dynamic_slice`, `at`, `key`, `split`, windows",
    ),
    (
        "lax::broadcast lax::convert_element_type lax::reduce_and lax::reduce_max lax::reduce_min lax::reduce_or \
         lax::reduce_prod lax::reduce_sum lax::iota_of_size numpy::asarray numpy::dsplit numpy::fliplr numpy::flipud numpy::fromfunction \
         numpy::hsplit numpy::vsplit numpy::unique_counts numpy::unique_inverse",
        "other names or forms of functions that cases call: the examples in the documentation",
    ),
    (
        "numpy::intersect1d numpy::setdiff1d numpy::setxor1d",
        "sets whose size follows from the values: tests/numbers/sets.rs",
    ),
    (
        "spmd::all_gather spmd::all_gather_invariant spmd::all_gather_tiled spmd::all_to_all spmd::all_to_all_tiled \
         spmd::axis_index spmd::axis_size spmd::pbroadcast spmd::pcast spmd::pcast_to spmd::pmax spmd::pmean spmd::pmin spmd::ppermute \
         spmd::pshift spmd::pshuffle spmd::psum spmd::psum_scatter spmd::psum_scatter_tiled spmd::pswapaxes \
         spmd::ragged_all_to_all",
        "over devices: tests/collectives, and the random programs, which are JAX's",
    ),
];

// The paths are explicit because `tests/states` includes this file from another folder.
#[path = "table/arrays.rs"]
mod arrays_entries;
#[path = "table/lax.rs"]
mod lax_entries;
#[path = "table/nn.rs"]
mod nn_entries;
#[path = "table/numpy.rs"]
mod numpy_entries;
#[path = "table/random.rs"]
mod random_entries;
#[path = "table/special.rs"]
mod special_entries;
#[path = "table/spmd.rs"]
mod spmd_entries;

/// The entries of all parts, in this order.
pub static TABLE: LazyLock<Vec<(&str, Call)>> = LazyLock::new(|| {
    let parts = [
        arrays_entries::PART,
        lax_entries::PART,
        nn_entries::PART,
        numpy_entries::PART,
        random_entries::PART,
        special_entries::PART,
        spmd_entries::PART,
    ];
    parts.concat()
});
