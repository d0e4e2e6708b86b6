//! The arguments of each public function in a case.

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
        pub const TABLE: &[(&str, Call)] = &[$(($name, |$c| Outcome::results($call)),)*];
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
    ("Initializer::batch_axis", "with JAX's numbers: tests/basics.rs"),
    ("numpy::finfo numpy::iinfo", "with JAX's values: tests/numbers/limits.rs"),
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
         lax::reduce_prod lax::reduce_sum numpy::asarray numpy::dsplit numpy::fliplr numpy::flipud numpy::fromfunction \
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

table! {
    "Array::abs" => |c| c.x.abs();
    "Array::all" => |c| same!(c; c.x.all(c.i), c.x.all(..), c.x.all([c.i, 0]));
    "Array::all_keepdims" => |c| c.x.all_keepdims([c.i, -1]);
    "Array::aval" => |c| done(c.x.aval());
    "Array::any" => |c| same!(c; c.x.any(c.i), c.x.any(..));
    "Array::any_keepdims" => |c| c.x.any_keepdims(c.i);
    "Array::arccos" => |c| c.x.arccos();
    "Array::arccosh" => |c| c.x.arccosh();
    "Array::arcsin" => |c| c.x.arcsin();
    "Array::arcsinh" => |c| c.x.arcsinh();
    "Array::arctan" => |c| c.x.arctan();
    "Array::arctanh" => |c| c.x.arctanh();
    "Array::argmax" => |c| same!(c; c.x.argmax(c.i), c.x.argmax(..));
    "Array::argmin" => |c| c.x.argmin(c.i);
    "Array::argsort" => |c| c.x.argsort(c.i);
    "Array::argsort_descending" => |c| c.x.argsort_descending(c.i);
    "Array::astype" => |c| c.x.astype(c.dtype);
    "Array::at" => |c| c.x.at(c.index()).get();
    "Array::bitwise_not" => |c| c.x.bitwise_not();
    "Array::broadcast_to" => |c| c.x.broadcast_to(c.dims());
    "Array::cbrt" => |c| c.x.cbrt();
    "Array::ceil" => |c| c.x.ceil();
    "Array::check" => |c| c.x.check();
    "Array::clip" => |c| same!(c; c.x.clip(c.i, c.f), c.x.clip(&c.y, c.n));
    "Array::clz" => |c| c.x.clz();
    "Array::conj" => |c| c.x.conj();
    "Array::cos" => |c| c.x.cos();
    "Array::cosh" => |c| c.x.cosh();
    "Array::cummax" => |c| c.x.cummax(c.i);
    "Array::cummin" => |c| c.x.cummin(c.i);
    "Array::cumprod" => |c| c.x.cumprod(c.i);
    "Array::cumsum" => |c| same!(c; c.x.cumsum(c.i), c.x.cumsum(..));
    "Array::diagonal" => |c| c.x.diagonal(c.i, 0, c.i);
    "Array::digamma" => |c| c.x.digamma();
    "Array::dot" => |c| c.x.dot(&c.y);
    "Array::dtype" => |c| done(c.x.dtype());
    "Array::equal" => |c| c.x.equal(&c.y);
    "Array::erf" => |c| c.x.erf();
    "Array::erf_inv" => |c| c.x.erf_inv();
    "Array::erfc" => |c| c.x.erfc();
    "Array::error" => |c| done(c.x.error());
    "Array::exp" => |c| c.x.exp();
    "Array::exp2" => |c| c.x.exp2();
    "Array::expand_dims" => |c| same!(c; c.x.expand_dims(c.i), c.x.expand_dims([c.i, 0]));
    "Array::expm1" => |c| c.x.expm1();
    "Array::flatten_from" => |c| c.x.flatten_from(c.i);
    "Array::flip" => |c| same!(c; c.x.flip(c.i), c.x.flip(..));
    "Array::floor" => |c| c.x.floor();
    "Array::from_bytes" => |c| Array::from_bytes(&[7; 8], c.dtype, &[c.n]);
    "Array::from_error" => |c| Array::from_error(shardax::Error::new(shardax::ErrorKind::Value, c.f.to_string()), &c.x);
    "Array::from_slice" => |c| Array::from_slice(&[1.5f32, 2.0], &[c.n, c.n]);
    "Array::from_vec" => |c| Array::from_vec(vec![1i8; 3], &[c.n]);
    "Array::get" => |c| same!(c; c.x.get(c.i), c.x.get(&c.places), c.x.get(Slice::new(None, None, i64::from(c.i))));
    "Array::greater" => |c| c.x.greater(&c.y);
    "Array::greater_equal" => |c| c.x.greater_equal(c.f);
    "Array::imag" => |c| c.x.imag();
    "Array::is_traced" => |c| done(c.x.is_traced());
    "Array::isfinite" => |c| c.x.isfinite();
    "Array::isinf" => |c| c.x.isinf();
    "Array::isnan" => |c| c.x.isnan();
    "Array::item" => |c| c.x.item::<f32>().map(done);
    "Array::iter" => |c| c.x.iter().take(3).collect::<Vec<_>>();
    "Array::less" => |c| c.x.less(c.i);
    "Array::less_equal" => |c| c.x.less_equal(&c.y);
    "Array::lgamma" => |c| c.x.lgamma();
    "Array::log" => |c| c.x.log();
    "Array::log10" => |c| c.x.log10();
    "Array::log1p" => |c| c.x.log1p();
    "Array::log2" => |c| c.x.log2();
    "Array::logical_not" => |c| c.x.logical_not();
    "Array::logistic" => |c| c.x.logistic();
    "Array::logsumexp" => |c| same!(c; c.x.logsumexp(c.i), c.x.logsumexp(..));
    "Array::logsumexp_keepdims" => |c| c.x.logsumexp_keepdims(c.i);
    "Array::matmul" => |c| c.x.matmul(&c.y);
    "Array::max" => |c| same!(c; c.x.max(c.i), c.x.max(..));
    "Array::max_keepdims" => |c| c.x.max_keepdims(c.i);
    "Array::maximum" => |c| c.x.maximum(&c.y);
    "Array::mean" => |c| same!(c; c.x.mean(c.i), c.x.mean(..));
    "Array::mean_keepdims" => |c| c.x.mean_keepdims(c.i);
    "Array::min" => |c| c.x.min(c.i);
    "Array::min_keepdims" => |c| c.x.min_keepdims([c.i]);
    "Array::minimum" => |c| c.x.minimum(c.f);
    "Array::moveaxis" => |c| c.x.moveaxis(c.i, -1);
    "Array::mt" => |c| c.x.mt();
    "Array::nbytes" => |c| done(c.x.nbytes());
    "Array::ndim" => |c| done(c.x.ndim());
    "Array::negative" => |c| c.x.negative();
    "Array::not_equal" => |c| c.x.not_equal(&c.y);
    "Array::population_count" => |c| c.x.population_count();
    "Array::pow" => |c| same!(c; c.x.pow(&c.y), c.x.pow(c.i), c.x.pow(c.f));
    "Array::prod" => |c| same!(c; c.x.prod(c.i), c.x.prod(..));
    "Array::prod_keepdims" => |c| c.x.prod_keepdims(c.i);
    "Array::ravel" => |c| c.x.ravel();
    "Array::real" => |c| c.x.real();
    "Array::reciprocal" => |c| c.x.reciprocal();
    "Array::flatten" => |c| c.x.flatten();
    "Array::reshape" => |c| same!(c; c.x.reshape([c.n]), c.x.reshape(c.dims()), c.x.reshape([-1, c.i]));
    "Array::roll" => |c| same!(c; c.x.roll(i64::from(c.i), c.i), c.x.roll(i64::MIN, ..));
    "Array::round" => |c| c.x.round();
    "Array::rsqrt" => |c| c.x.rsqrt();
    "Array::searchsorted" => |c| c.x.searchsorted(&c.y);
    "Array::searchsorted_right" => |c| c.x.searchsorted_right(&c.y);
    "Array::shape" => |c| done(c.x.shape());
    "Array::sign" => |c| c.x.sign();
    "Array::sin" => |c| c.x.sin();
    "Array::sinh" => |c| c.x.sinh();
    "Array::size" => |c| done(c.x.size());
    "Array::sort" => |c| same!(c; c.x.sort(c.i), c.x.sort(..));
    "Array::sort_descending" => |c| c.x.sort_descending(c.i);
    "Array::split" => |c| c.x.split(c.n, c.i);
    "Array::split_at" => |c| c.x.split_at(&[c.n, 1, 0], c.i);
    "Array::sqrt" => |c| c.x.sqrt();
    "Array::square" => |c| c.x.square();
    "Array::squeeze" => |c| same!(c; c.x.squeeze(..), c.x.squeeze(c.i), c.x.squeeze([c.i, 1]));
    "Array::std" => |c| c.x.std(c.i);
    "Array::std_ddof" => |c| c.x.std_ddof(.., c.n);
    "Array::std_keepdims" => |c| c.x.std_keepdims(c.i);
    "Array::sum" => |c| same!(c; c.x.sum(c.i), c.x.sum(..), c.x.sum([c.i, c.i]));
    "Array::sum_keepdims" => |c| c.x.sum_keepdims(c.i);
    "Array::swapaxes" => |c| c.x.swapaxes(c.i, 0);
    "Array::t" => |c| c.x.t();
    "Array::take" => |c| same!(c; c.x.take(&c.places, c.i), c.x.take(c.i, ..));
    "Array::take_along_axis" => |c| c.x.take_along_axis(&c.places, c.i);
    "Array::take_mode" => |c| c.x.take_mode(&c.places, c.i, c.mode());
    "Array::tan" => |c| c.x.tan();
    "Array::tanh" => |c| c.x.tanh();
    "Array::to_bytes" => |c| c.x.to_bytes().map(done);
    "Array::to_f64" => |c| c.x.to_f64().map(done);
    "Array::to_f64_vec" => |c| c.x.to_f64_vec().map(done);
    "Array::to_vec" => |c| c.x.to_vec::<u16>().map(done);
    "Array::trace" => |c| c.x.trace();
    "Array::transpose" => |c| c.x.transpose(&c.permutation());
    "Array::tril" => |c| c.x.tril(c.i);
    "Array::triu" => |c| c.x.triu(c.i);
    "Array::trunc" => |c| c.x.trunc();
    "Array::type_name" => |c| done((c.x.type_name(), c.x.to_string(), format!("{:?}", c.x)));
    "Array::unstack" => |c| c.x.unstack::<3>().map(|parts| parts.to_vec());
    "Array::var" => |c| same!(c; c.x.var(c.i), c.x.var(..));
    "Array::var_ddof" => |c| c.x.var_ddof(c.i, c.n);
    "Array::var_keepdims" => |c| c.x.var_keepdims(c.i);
    "Array::vma" => |c| done(c.x.vma());
    "Array::weak_type" => |c| done(c.x.weak_type());
    "At::add" => |c| same!(c; c.x.at(c.index()).add(&c.y), c.x.at(c.i).add(c.n));
    "At::apply" => |c| c.x.at(c.index()).apply(|x| x * 2);
    "At::divide" => |c| c.x.at(&c.places).divide(&c.y);
    "At::fill_value" => |c| same!(c; c.x.at(&c.places).fill_value(c.f).get(), c.x.at(&c.places).fill_value(c.i).get());
    "At::get" => |c| c.x.at((&c.places, c.i)).get();
    "At::indices_are_sorted" => |c| c.x.at(&c.places).indices_are_sorted().set(&c.y);
    "At::max" => |c| c.x.at(c.index()).max(&c.y);
    "At::min" => |c| c.x.at(&c.places).min(c.f);
    "At::mode" => |c| same!(c; c.x.at(&c.places).mode(c.mode()).get(), c.x.at(&c.places).mode(c.mode()).add(&c.y));
    "At::multiply" => |c| c.x.at(c.index()).multiply(&c.y);
    "At::power" => |c| c.x.at(c.index()).power(c.i);
    "At::set" => |c| same!(c; c.x.at(c.index()).set(&c.y), c.x.at(&c.places).set(c.i), c.x.at(..).set(c.f));
    "At::subtract" => |c| c.x.at(&c.places).subtract(&c.y);
    "At::unique_indices" => |c| c.x.at(c.index()).unique_indices().multiply(&c.y);
    "Initializer::batch_axis" => |c| init::he_normal().batch_axis(c.i).init(&c.key, c.x.shape(), c.dtype);
    "Initializer::axes" => |c| init::glorot_normal().axes(c.i, 0).init(&c.key, c.x.shape(), c.dtype);
    "Initializer::init" => |c| init::normal(c.f).init(&c.key, &[c.n, 2], c.dtype);
    "Over::dtype" => |c| same!(c; c.x.sum(over(c.i).dtype(c.dtype)), c.x.mean(over(..).dtype(c.dtype)));
    "Over::initial" => |c| same!(c; c.x.max(over(c.i).initial(c.f)), c.x.sum(over(..).initial(&c.y)), c.x.any(over(..).initial(0)));
    "Over::keepdims" => |c| same!(c; c.x.mean(over([c.i, 0]).keepdims(true)), c.x.all(over(c.i).keepdims(c.i > 0)));
    "Over::mask" => |c| same!(c;
        c.x.var(over(c.i).mask(c.x.greater(0))),
        c.x.sum(over(..).mask(&c.y)),
        c.x.prod(over(..).mask(true)),
        c.x.logsumexp(over(c.i).mask(c.y.equal(0))),
        c.x.min(over(c.i).mask(c.y.equal(0)).initial(c.f))
    );
    "Pool::avg" => |c| Pool::new(c.window()).padding(c.padding()).avg(&c.x);
    "Pool::count_include_pad" => |c| Pool::new(c.window()).count_include_pad(c.i > 0).avg(&c.x);
    "Pool::max" => |c| Pool::new(c.window()).strides(c.sizes()).max(&c.x);
    "Pool::min" => |c| Pool::new([c.n]).min(&c.x);
    "Pool::new" => |c| Pool::new([c.n, 2]).max(&c.x);
    "Pool::padding" => |c| Pool::new([2]).padding(c.padding()).max(&c.x);
    "Pool::strides" => |c| Pool::new([2]).strides([c.n]).max(&c.x);
    "ScanOptions::fori_loop" => |c| {
        ScanOptions::default().unroll(c.n).fori_loop(0, 3, |i, x: Array| x + i, c.x.clone())
    };
    "ScanOptions::length" => |c| ScanOptions::default().length(c.n).scan(|s: Array, x: Array| (s, x), c.y.clone(), c.x.clone());
    "ScanOptions::reverse" => |c| {
        ScanOptions::default().reverse(true).scan(|s: Array, x: Array| (&s + x, s), c.x.get(0), c.x.clone())
    };
    "ScanOptions::scan" => |c| ScanOptions::default().scan(|s: Array, x: Array| (s + x, ()), c.y.clone(), c.x.clone()).map(|(s, ())| s);
    "ScanOptions::unroll" => |c| ScanOptions::default().unroll(c.n).scan(|s: Array, x: Array| (s, x), c.y.clone(), c.x.clone());
    "array::array_of" => |c| same!(c; array_of(c.f, DType::I8), array_of(vec![vec![c.i], vec![]], DType::F64), array_of([300, -1], DType::U8));
    "array::array" => |c| same!(c; array(c.f), array(vec![vec![c.i], vec![]]), array(Vec::<Vec<f32>>::new()));
    "control_flow::associative_scan" => |c| same!(c;
        AssociativeScanOptions::default().reverse(c.i > 0).axis(c.i).associative_scan(|a: Array, b: Array| a + b, c.x.clone()),
        associative_scan(|a: Array, _: Array| a.get(0), c.x.clone()),
        AssociativeScanOptions::default().axis(c.i).associative_scan(|a: Array, _: Array| a.expand_dims(0), c.x.clone())
    );
    "control_flow::cond" => |c| same!(c;
        cond(&c.mask, |x: Array| -x, |x: Array| x, c.x.clone()),
        cond(c.i > 0, |x: Array| x.sum(..), |x: Array| x, c.x.clone()),
        cond(&c.y, |x: Array| x.astype(DType::F32), |x: Array| x, c.x.clone())
    );
    "control_flow::fori_loop" => |c| same!(c;
        fori_loop(c.i, c.n, |_, x: Array| x, c.x.clone()),
        fori_loop(0, &c.y, |i, x: Array| x + i, c.x.clone()),
        fori_loop(0, 3, |_, x: Array| x.sum(..), c.x.clone())
    );
    "control_flow::map" => |c| shardax::control_flow::map(|x: Array| x.sum(..), c.x.clone());
    "control_flow::scan" => |c| same!(c;
        scan(|s: Array, x: Array| (s * x, ()), c.y.clone(), c.x.clone()).map(|(s, ())| s),
        scan(|s: Array, x: Array| (x, s), c.y.clone(), c.x.clone())
    );
    "control_flow::scan_n" => |c| scan_n(|s: Array| (&s * 2, s), c.x.clone(), c.n);
    "control_flow::switch" => |c| switch(&c.places, (|x: Array| x, |x: Array| -x), c.x.clone());
    "control_flow::while_loop" => |c| same!(c;
        while_loop(|x: Array| x.greater(0), |x: Array| x - 1, c.x.clone()),
        while_loop(|x: Array| x.sum(..).less(c.i), |x: Array| x.astype(c.dtype), c.y.clone())
    );
    "fft::dct" => |c| same!(c; scipy::fft::dct(&c.x), c.transform().dct(&c.x));
    "fft::dctn" => |c| same!(c; scipy::fft::dctn(&c.x), c.transform().dctn(&c.x));
    "fft::fft" => |c| same!(c; fft::fft(&c.x), c.transform().fft(&c.x));
    "fft::fft2" => |c| same!(c; fft::fft2(&c.x), c.transform().fft2(&c.x));
    "fft::fftfreq" => |c| fft::fftfreq(c.n, c.f);
    "fft::fftn" => |c| same!(c; fft::fftn(&c.x), c.transform().fftn(&c.x));
    "fft::fftshift" => |c| same!(c; fft::fftshift(&c.x, c.i), fft::fftshift(&c.x, ..));
    "fft::hfft" => |c| same!(c; fft::hfft(&c.x), c.transform().hfft(&c.x));
    "fft::idct" => |c| same!(c; scipy::fft::idct(&c.x), c.transform().idct(&c.x));
    "fft::idctn" => |c| same!(c; scipy::fft::idctn(&c.x), c.transform().idctn(&c.x));
    "fft::ifft" => |c| same!(c; fft::ifft(&c.x), c.transform().ifft(&c.x));
    "fft::ifft2" => |c| same!(c; fft::ifft2(&c.x), c.transform().ifft2(&c.x));
    "fft::ifftn" => |c| same!(c; fft::ifftn(&c.x), c.transform().ifftn(&c.x));
    "fft::ifftshift" => |c| same!(c; fft::ifftshift(&c.x, [c.i, 0]), fft::ifftshift(&c.x, ..));
    "fft::ihfft" => |c| same!(c; fft::ihfft(&c.x), c.transform().ihfft(&c.x));
    "fft::irfft" => |c| same!(c; fft::irfft(&c.x), c.transform().irfft(&c.x));
    "fft::irfft2" => |c| same!(c; fft::irfft2(&c.x), c.transform().irfft2(&c.x));
    "fft::irfftn" => |c| same!(c; fft::irfftn(&c.x), c.transform().irfftn(&c.x));
    "fft::rfft" => |c| same!(c; fft::rfft(&c.x), c.transform().rfft(&c.x));
    "fft::rfft2" => |c| same!(c; fft::rfft2(&c.x), c.transform().rfft2(&c.x));
    "fft::rfftfreq" => |c| fft::rfftfreq(c.n, c.f);
    "fft::rfftn" => |c| same!(c; fft::rfftn(&c.x), c.transform().rfftn(&c.x));
    "image::resize" => |c| same!(c;
        image::resize(&c.x, c.dims(), ResizeMethod::Lanczos3),
        image::resize(&c.x, c.sizes(), ResizeMethod::Nearest),
        image::resize(&c.x, c.sizes(), ResizeOptions::new(ResizeMethod::Cubic).antialias(false))
    );
    "image::scale_and_translate" => |c| {
        image::scale_and_translate(&c.x, c.sizes(), &[c.i], &c.y, &c.x, ResizeMethod::Linear)
    };
    "lax::approx_max_k" => |c| lax::approx_max_k(&c.x, c.n);
    "lax::approx_min_k" => |c| lax::TopKOptions::new().axis(c.i).approx_min_k(&c.x, c.n);
    "lax::bitcast_convert_type" => |c| lax::bitcast_convert_type(&c.x, c.dtype);
    "lax::broadcast" => |c| lax::broadcast(&c.x, &[c.n, 1]);
    "lax::broadcast_in_dim" => |c| lax::broadcast_in_dim(&c.x, &[c.n, 3], &[c.i.unsigned_abs() as usize]);
    "lax::broadcasted_iota" => |c| same!(c;
        lax::broadcasted_iota(c.dtype, c.dims(), c.i),
        lax::broadcasted_iota(c.dtype, [c.n], c.n)
    );
    "lax::cholesky" => |c| lax::cholesky(&c.x);
    "lax::clamp" => |c| same!(c; lax::clamp(c.i, &c.x, c.f), lax::clamp(&c.y, &c.x, c.n));
    "lax::collapse" => |c| same!(c; lax::collapse(&c.x, c.i, None), lax::collapse(&c.x, 0, c.i));
    "lax::complex" => |c| lax::complex(&c.x, &c.y);
    "lax::concatenate" => |c| same!(c; lax::concatenate(&c.both(), c.i), lax::concatenate(&c.both(), c.n), lax::concatenate(&[], 0));
    "lax::conv" => |c| lax::conv(&c.x, &c.y, [c.n], c.padding());
    "lax::conv_general_dilated" => |c| same!(c;
        lax::conv_general_dilated(&c.x, &c.y, [1], c.padding(), ConvOptions::new().feature_group_count(c.n)),
        lax::conv_general_dilated(&c.x, &c.x, [c.n], c.padding(), ConvOptions::new().lhs_dilation([c.n]).rhs_dilation([c.n])),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().batch_group_count(c.n)),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().preferred_element_type(c.dtype)),
        lax::conv_general_dilated(&c.x, &c.x, [1], c.padding(), ConvOptions::new().dimension_numbers("NNé", "", "OI"))
    );
    "lax::conv_general_dilated_patches" => |c| {
        lax::conv_general_dilated_patches(&c.x, [c.n], [c.n], c.padding(), ConvOptions::new().channels_last(1))
    };
    "lax::conv_transpose" => |c| lax::conv_transpose(&c.x, &c.y, [c.n], c.padding(), ConvOptions::new());
    "lax::convert_element_type" => |c| lax::convert_element_type(&c.x, c.dtype);
    "lax::cumlogsumexp" => |c| lax::CumulativeOptions::default().reverse(c.i > 0).cumlogsumexp(&c.x, c.i);
    "lax::cummax" => |c| lax::CumulativeOptions::default().reverse(c.i > 0).cummax(&c.x, c.i);
    "lax::cummin" => |c| lax::CumulativeOptions::default().reverse(true).cummin(&c.x, c.n);
    "lax::cumprod" => |c| lax::cumprod(&c.x, c.i);
    "lax::cumsum" => |c| lax::CumulativeOptions::default().reverse(c.i > 0).cumsum(&c.x, c.n);
    "lax::div" => |c| lax::div(&c.x, &c.y);
    "lax::dot_general" => |c| same!(c;
        lax::dot_general(&c.x, &c.y, (&[c.n], &[0]), (&[], &[]), Some(c.dtype)),
        lax::dot_general(&c.x, &c.x, (&[0, 0], &[0, 0]), (&[c.n], &[c.n]), None)
    );
    "lax::dynamic_index_in_dim" => |c| same!(c;
        lax::dynamic_index_in_dim(&c.x, &c.places, c.i),
        lax::dynamic_index_in_dim(&c.x, c.n, 0)
    );
    "lax::dynamic_slice" => |c| lax::dynamic_slice(&c.x, &c.starts(), &c.sizes());
    "lax::dynamic_slice_in_dim" => |c| lax::dynamic_slice_in_dim(&c.x, c.i, c.n, c.i);
    "lax::dynamic_update_index_in_dim" => |c| lax::dynamic_update_index_in_dim(&c.x, &c.y, &c.places, c.i);
    "lax::dynamic_update_slice" => |c| lax::dynamic_update_slice(&c.x, &c.y, &c.starts());
    "lax::dynamic_update_slice_in_dim" => |c| lax::dynamic_update_slice_in_dim(&c.x, &c.y, c.n, c.i);
    "lax::expand_dims" => |c| lax::expand_dims(&c.x, [c.i, 0]);
    "lax::gather" => |c| {
        let dims = GatherDimensionNumbers {
            offset_dims: vec![0],
            collapsed_slice_dims: vec![c.n],
            start_index_map: vec![c.n],
            ..Default::default()
        };
        same!(c;
            lax::gather(&c.x, &c.places, dims, &c.sizes(), c.mode()),
            lax::gather(&c.x, &c.places, GatherDimensionNumbers::default(), &c.sizes(), c.mode())
        )
    };
    "lax::index_in_dim" => |c| same!(c; lax::index_in_dim(&c.x, c.i, 0, true), lax::index_in_dim(&c.x, 0, c.i, false));
    "lax::lu" => |c| lax::linalg::lu(&c.x);
    "lax::optimization_barrier" => |c| lax::optimization_barrier((c.x.clone(), c.y.clone()));
    "lax::pad" => |c| same!(c;
        lax::pad(&c.x, &c.y, &c.sizes().iter().map(|&n| (i64::from(c.i), n as i64, i64::from(c.i))).collect::<Vec<_>>()),
        lax::pad(&c.x, &Array::from(c.i).astype(c.x.dtype()), &c.sizes().iter().map(|_| (i64::MAX, i64::MAX, i64::MAX)).collect::<Vec<_>>()),
        lax::pad(&c.x, &Array::from(c.i).astype(c.x.dtype()), &c.sizes().iter().map(|_| (i64::MIN, 1, 0)).collect::<Vec<_>>())
    );
    "lax::qr" => |c| lax::linalg::qr(&c.x, if c.i > 0 { lax::linalg::QrMode::Complete } else { lax::linalg::QrMode::Reduced });
    "lax::reduce" => |c| same!(c; lax::reduce(&c.x, c.i, |a, b| a * b, c.i), lax::reduce(&c.x, &c.y, |a, b| a + b, ..));
    "lax::rng_bit_generator" => |c| lax::rng_bit_generator(&c.x, &[c.n], c.dtype, lax::RandomAlgorithm::Default);
    "lax::ragged_dot" => |c| lax::ragged_dot(&c.x, &c.y, &c.places);
    "lax::reduce_and" => |c| lax::reduce_and(&c.x, &[c.n]);
    "lax::reduce_max" => |c| lax::reduce_max(&c.x, &[c.n]);
    "lax::reduce_min" => |c| lax::reduce_min(&c.x, &[0, c.n]);
    "lax::reduce_or" => |c| lax::reduce_or(&c.x, &[c.n]);
    "lax::reduce_prod" => |c| lax::reduce_prod(&c.x, &[c.n]);
    "lax::reduce_sum" => |c| lax::reduce_sum(&c.x, &[c.n, c.n]);
    "lax::reduce_window" => |c| {
        lax::reduce_window(&c.x, c.f, |a, b| a + b, lax::Window::new(c.window()).padding(c.padding()))
    };
    "lax::reduce_precision" => |c| lax::reduce_precision(&c.x, c.i.unsigned_abs(), c.n.min(100) as u32);
    "lax::reduce_window_max" => |c| lax::reduce_window_max(&c.x, lax::Window::new(c.window()));
    "lax::reduce_window_min" => |c| lax::reduce_window_min(&c.x, lax::Window::new(c.window()).padding(c.padding()).base_dilation(c.sizes()));
    "lax::reduce_window_sum" => |c| lax::reduce_window_sum(&c.x, lax::Window::new(c.window()).strides(c.sizes()).window_dilation(c.sizes()));
    "lax::rem" => |c| lax::rem(&c.x, &c.y);
    "lax::reshape" => |c| lax::reshape(&c.x, &[c.n, 1]);
    "lax::rev" => |c| same!(c; lax::rev(&c.x, &[c.i]), lax::rev(&c.x, &[c.n, 0]));
    "lax::scatter" => |c| same!(c;
        lax::scatter(ScatterKind::Add, &c.x, &c.places, &c.y, ScatterDimensionNumbers::default(), c.mode()),
        lax::scatter(ScatterKind::Max, &c.x, &c.places, &c.y, ScatterDimensionNumbers {
            update_window_dims: vec![c.n],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![c.n],
            ..Default::default()
        }, c.mode())
    );
    "lax::select" => |c| same!(c; lax::select(&c.mask, &c.x, &c.y), lax::select(&c.x, &c.x, &c.y));
    "lax::select_n" => |c| same!(c; lax::select_n(&c.mask, &c.both()), lax::select_n(&c.places, &c.both()), lax::select_n(&c.x, &[]));
    "lax::shift_right_arithmetic" => |c| lax::shift_right_arithmetic(&c.x, &c.y);
    "lax::shift_right_logical" => |c| lax::shift_right_logical(&c.x, &c.y);
    "lax::slice" => |c| same!(c;
        lax::slice(&c.x, &[0], &[c.n], Some(&[c.i.unsigned_abs() as usize])),
        lax::slice(&c.x, &c.sizes(), c.x.shape(), Some(&c.sizes()))
    );
    "lax::slice_in_dim" => |c| same!(c; lax::slice_in_dim(&c.x, c.n, 2, c.i), lax::slice_in_dim(&c.x, 0, c.n, c.n));
    "lax::sort" => |c| same!(c; lax::sort(&c.both(), c.i, c.n), lax::sort(&[], 0, 1), lax::sort(std::slice::from_ref(&c.x), c.i, 1));
    "lax::squeeze" => |c| lax::squeeze(&c.x, c.i);
    "lax::polynomial" => |c| lax::polynomial(&c.x, c.both());
    "lax::top_k" => |c| same!(c; lax::top_k(&c.x, c.n), lax::TopKOptions::new().axis(c.i).top_k(&c.x, c.n));
    "lax::transpose" => |c| lax::transpose(&c.x, &[c.n, 0]);
    "lax::triangular_solve" => |c| lax::triangular_solve(&c.x, &c.y, lax::Triangular::default());
    "linalg::bicgstab" => |c| scipy::sparse::linalg::bicgstab(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::block_diag" => |c| scipy::linalg::block_diag(&c.both());
    "linalg::cg" => |c| scipy::sparse::linalg::cg(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::cho_factor" => |c| scipy::linalg::cho_factor(&c.x);
    "linalg::cho_solve" => |c| scipy::linalg::cho_solve(&c.x, &c.y);
    "linalg::cholesky" => |c| linalg::cholesky(&c.x);
    "linalg::circulant" => |c| scipy::linalg::circulant(&c.x);
    "linalg::cond" => |c| same!(c; linalg::cond(&c.x, None), linalg::cond(&c.x, linalg::NormOrder::Fro));
    "linalg::companion" => |c| scipy::linalg::companion(&c.x);
    "linalg::det" => |c| linalg::det(&c.x);
    "linalg::dft" => |c| scipy::linalg::dft(c.n.min(64), scipy::linalg::DftScale::Sqrtn);
    "linalg::eig" => |c| linalg::eig(&c.x);
    "linalg::eigh" => |c| linalg::eigh(&c.x);
    "linalg::eigh_tridiagonal" => |c| scipy::linalg::eigh_tridiagonal(&c.x, &c.y);
    "linalg::eigvals" => |c| linalg::eigvals(&c.x);
    "linalg::eigvalsh" => |c| linalg::eigvalsh(&c.x);
    "linalg::expm" => |c| scipy::linalg::expm(&c.x);
    "linalg::expm_frechet" => |c| scipy::linalg::expm_frechet(&c.x, &c.y);
    "linalg::fiedler" => |c| scipy::linalg::fiedler(&c.x);
    "linalg::funm" => |c| scipy::linalg::funm(&c.x, |x| x.exp());
    "linalg::gmres" => |c| scipy::sparse::linalg::gmres(|x: Array| c.x.matmul(x), c.y.clone());
    "linalg::hadamard" => |c| scipy::linalg::hadamard(c.n, c.dtype);
    "linalg::hankel" => |c| scipy::linalg::hankel(&c.x, &c.y);
    "linalg::hessenberg" => |c| scipy::linalg::hessenberg(&c.x);
    "linalg::hilbert" => |c| scipy::linalg::hilbert(c.n.min(64));
    "linalg::inv" => |c| linalg::inv(&c.x);
    "linalg::leslie" => |c| scipy::linalg::leslie(&c.x, &c.y);
    "linalg::lstsq" => |c| {
        let (x, residuals, rank, s) = linalg::lstsq(&c.x, &c.y);
        vec![x, residuals, rank, s]
    };
    "linalg::lu_factor" => |c| scipy::linalg::lu_factor(&c.x);
    "linalg::lu_solve" => |c| scipy::linalg::lu_solve(scipy::linalg::lu_factor(&c.x), &c.y, scipy::linalg::Trans::No);
    "linalg::matrix_power" => |c| linalg::matrix_power(&c.x, c.i);
    "linalg::matrix_rank" => |c| linalg::matrix_rank(&c.x);
    "linalg::multi_dot" => |c| linalg::multi_dot([&c.x, &c.y, &c.x]);
    "linalg::norm" => |c| same!(c; linalg::norm(&c.x, c.f, c.i), linalg::norm(&c.x, linalg::NormOrder::Fro, ..));
    "linalg::norm_keepdims" => |c| linalg::norm_keepdims(&c.x, c.f, [c.i, 0]);
    "linalg::pinv" => |c| linalg::pinv(&c.x);
    "linalg::polar" => |c| scipy::linalg::polar(&c.x, scipy::linalg::PolarSide::Right);
    "linalg::poly" => |c| np::poly(&c.x);
    "linalg::polyfit" => |c| same!(c; np::polyfit(&c.x, &c.y, c.n, None), np::polyfit(&c.x, &c.y, 2, &c.y));
    "linalg::qr" => |c| linalg::qr(&c.x);
    "linalg::qr_complete" => |c| linalg::qr_complete(&c.x);
    "linalg::qr_multiply" => |c| scipy::linalg::qr_multiply(&c.x, &c.y);
    "linalg::roots" => |c| np::roots(&c.x);
    "linalg::rsf2csf" => |c| scipy::linalg::rsf2csf(&c.x, &c.y);
    "linalg::schur" => |c| scipy::linalg::schur(&c.x, scipy::linalg::SchurOutput::Complex);
    "linalg::slogdet" => |c| linalg::slogdet(&c.x);
    "linalg::solve" => |c| same!(c; linalg::solve(&c.x, &c.y), scipy::linalg::solve(&c.x, &c.y, scipy::linalg::AssumeA::Pos));
    "linalg::solve_triangular" => |c| scipy::linalg::solve_triangular(&c.x, &c.y, scipy::linalg::Trans::Adjoint, c.i > 0, c.i < 0);
    "linalg::solve_sylvester" => |c| scipy::linalg::solve_sylvester(&c.x, &c.y, &c.x);
    "linalg::sqrtm" => |c| scipy::linalg::sqrtm(&c.x);
    "linalg::svd" => |c| linalg::svd(&c.x);
    "linalg::svd_full" => |c| linalg::svd_full(&c.x);
    "linalg::svdvals" => |c| linalg::svdvals(&c.x);
    "linalg::tensorinv" => |c| linalg::tensorinv(&c.x, c.n);
    "linalg::tensorsolve" => |c| linalg::tensorsolve(&c.x, &c.y);
    "linalg::toeplitz" => |c| scipy::linalg::toeplitz(&c.x, &c.y);
    "linalg::toeplitz_symmetric" => |c| scipy::linalg::toeplitz_symmetric(&c.x);
    "nn::attention" => |c| {
        let mask = (c.n % 2 == 0).then_some(&c.y);
        let window = nn::attention::Window { before: c.n, after: c.n };
        let options = nn::attention::Attention::default().window(window);
        let attend = |k: &Array, v: &Array| {
            let operands = nn::attention::Operands::new(&c.x, k, v);
            let added = nn::attention::Operands { mask: mask.cloned(), bias: Some(c.y.clone()), ..operands.clone() };
            [nn::attention::attention(&options, &operands), nn::attention::attention(&options, &added)].concat()
        };
        [attend(&c.y, &c.x), attend(&c.x, &c.x)].concat()
    };
    "nn::avg_pool" => |c| nn::avg_pool(&c.x, [c.n], [1]);
    "nn::celu" => |c| nn::celu(&c.x, c.f);
    "nn::constant" => |c| init::constant(c.f).init(&c.key, &[2, 2], c.dtype);
    "nn::conv" => |c| same!(c; nn::conv(&c.x, &c.y, [c.n], c.padding()), nn::conv(&c.x, &c.x, [1], c.padding()));
    "nn::delta_orthogonal" => |c| init::delta_orthogonal(c.f).init(&c.key, &[c.n.min(5), 2, 3], c.dtype);
    "nn::elu" => |c| nn::elu(&c.x, c.f);
    "nn::gelu" => |c| nn::gelu(&c.x);
    "nn::gelu_exact" => |c| nn::gelu_exact(&c.x);
    "nn::scaled_dot_general" => |c| {
        let config = if c.i < 0 { nn::BlockScaleConfig::mxfp8() } else { nn::BlockScaleConfig::nvfp4().global_scale(&c.y) };
        let configs = [config.clone(), config.clone(), config];
        nn::scaled_dot_general(&c.x, &c.y, (&[c.n], &[0]), (&[], &[]), Some(c.dtype), Some(configs))
    };
    "nn::scaled_matmul" => |c| nn::scaled_matmul(&c.x, &c.y, &c.x, &c.y, Some(c.dtype));
    "nn::glorot_normal" => |c| init::glorot_normal().init(&c.key, &[c.n], c.dtype);
    "nn::glorot_uniform" => |c| init::glorot_uniform().init(&c.key, c.x.shape(), c.dtype);
    "nn::glu" => |c| nn::glu(&c.x, c.i);
    "nn::hard_sigmoid" => |c| nn::hard_sigmoid(&c.x);
    "nn::hard_silu" => |c| nn::hard_silu(&c.x);
    "nn::hard_tanh" => |c| nn::hard_tanh(&c.x);
    "nn::he_normal" => |c| init::he_normal().axes(c.i, c.i).init(&c.key, c.x.shape(), c.dtype);
    "nn::he_uniform" => |c| init::he_uniform().init(&c.x, &[2, 2], c.dtype);
    "nn::leaky_relu" => |c| nn::leaky_relu(&c.x, c.f);
    "nn::lecun_normal" => |c| init::lecun_normal().init(&c.key, &[c.n, c.n, 0], c.dtype);
    "nn::lecun_uniform" => |c| init::lecun_uniform().init(&c.key, c.y.shape(), c.dtype);
    "nn::log1mexp" => |c| nn::log1mexp(&c.x);
    "nn::log_sigmoid" => |c| nn::log_sigmoid(&c.x);
    "nn::log_softmax" => |c| nn::log_softmax(&c.x, c.i);
    "nn::logmeanexp" => |c| same!(c; nn::logmeanexp(&c.x, c.i), nn::logmeanexp(&c.x, over(..).mask(&c.mask)));
    "nn::max_pool" => |c| nn::max_pool(&c.x, [1], [c.n]);
    "nn::min_pool" => |c| nn::min_pool(&c.x, [2], [c.n]);
    "nn::mish" => |c| nn::mish(&c.x);
    "nn::normal" => |c| init::normal(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::one_hot" => |c| same!(c;
        nn::one_hot(&c.x, c.n),
        nn::OneHotOptions::new().axis(c.i).dtype(c.dtype).one_hot(&c.x, c.n)
    );
    "nn::ones" => |c| init::ones().init(&c.key, &[c.n], c.dtype);
    "nn::orthogonal" => |c| same!(c;
        init::orthogonal(c.f).axes(0, c.i).init(&c.key, c.x.shape(), c.dtype),
        init::orthogonal(c.f).init(&c.key, &[c.n, 2], c.dtype)
    );
    "nn::relu" => |c| nn::relu(&c.x);
    "nn::relu6" => |c| nn::relu6(&c.x);
    "nn::selu" => |c| nn::selu(&c.x);
    "nn::sigmoid" => |c| nn::sigmoid(&c.x);
    "nn::silu" => |c| nn::silu(&c.x);
    "nn::soft_sign" => |c| nn::soft_sign(&c.x);
    "nn::softmax" => |c| same!(c; nn::softmax(&c.x, c.i), nn::softmax(&c.x, ..));
    "nn::softplus" => |c| nn::softplus(&c.x);
    "nn::sparse_plus" => |c| nn::sparse_plus(&c.x);
    "nn::sparse_sigmoid" => |c| nn::sparse_sigmoid(&c.x);
    "nn::squareplus" => |c| nn::squareplus(&c.x, c.f);
    "nn::standardize" => |c| same!(c;
        nn::standardize(&c.x, c.i),
        nn::StandardizeOptions::new().mean(&c.y).epsilon(c.f).standardize(&c.x, over(..).mask(&c.mask))
    );
    "nn::truncated_normal" => |c| init::truncated_normal(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::uniform" => |c| init::uniform(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::variance_scaling" => |c| {
        init::variance_scaling(c.f, init::Fan::Avg, init::Distribution::Uniform).axes(c.i, -1).init(&c.key, c.x.shape(), c.dtype)
    };
    "nn::zeros" => |c| init::zeros().init(&c.key, &[c.n], c.dtype);
    "norm::cdf" => |c| norm::cdf(&c.x, &c.y, c.f);
    "norm::isf" => |c| norm::isf(&c.x, &c.y, c.f);
    "norm::logcdf" => |c| norm::logcdf(&c.x, &c.y, c.f);
    "norm::logpdf" => |c| norm::logpdf(&c.x, &c.y, c.f);
    "norm::logsf" => |c| norm::logsf(&c.x, &c.y, c.f);
    "norm::pdf" => |c| norm::pdf(&c.x, &c.y, c.f);
    "norm::ppf" => |c| norm::ppf(&c.x, &c.y, c.f);
    "norm::sf" => |c| norm::sf(&c.x, &c.y, c.f);
    "numpy::abs" => |c| np::abs(&c.x);
    "numpy::add" => |c| same!(c; &c.x + &c.y, &c.x + c.i, &c.x + c.n, &c.x + c.f);
    "numpy::all" => |c| np::all(&c.x, c.i);
    "numpy::allclose" => |c| np::allclose(&c.x, &c.y, c.f, c.f).map(done);
    "numpy::angle" => |c| np::angle(&c.x);
    "numpy::any" => |c| np::any(&c.x, c.i);
    "numpy::append" => |c| same!(c; np::append(&c.x, &c.y, c.i), np::append(&c.x, &c.y, ..));
    "numpy::argpartition" => |c| np::argpartition(&c.x, c.i, c.i);
    "numpy::arange" => |c| same!(c; np::arange(0..c.i.min(1000)), np::arange(0.0..c.f.min(1e3)), np::arange(250u8..5));
    "numpy::arange_step" => |c| same!(c;
        np::arange_step(0..10, c.f),
        np::arange_step(i8::MIN..i8::MAX, 100.0),
        np::arange_step(0.0..1.0, if c.f == 0.5 { 1e-300 } else { c.f })
    );
    "numpy::arccos" => |c| np::arccos(&c.x);
    "numpy::arccosh" => |c| np::arccosh(&c.x);
    "numpy::arcsin" => |c| np::arcsin(&c.x);
    "numpy::arcsinh" => |c| np::arcsinh(&c.x);
    "numpy::arctan" => |c| np::arctan(&c.x);
    "numpy::arctan2" => |c| same!(c; np::arctan2(&c.x, &c.y), np::arctan2(c.i, &c.x));
    "numpy::arctanh" => |c| np::arctanh(&c.x);
    "numpy::argmax" => |c| np::argmax(&c.x, c.i);
    "numpy::argmin" => |c| np::argmin(&c.x, ..);
    "numpy::argsort" => |c| np::argsort(&c.x, ..);
    "numpy::argwhere" => |c| np::argwhere(&c.x, c.n);
    "numpy::around" => |c| same!(c; np::around(&c.x, c.i), np::around(&c.x, 2));
    "numpy::array_equal" => |c| np::array_equal(&c.x, &c.y);
    "numpy::array_equiv" => |c| np::array_equiv(&c.x, &c.y);
    "numpy::array_split" => |c| np::array_split(&c.x, c.n, c.i);
    "numpy::asarray" => |c| np::asarray(&c.x);
    "numpy::atleast_1d" => |c| np::atleast_1d(&c.x);
    "numpy::atleast_2d" => |c| np::atleast_2d(&c.x);
    "numpy::atleast_3d" => |c| np::atleast_3d(&c.x);
    "numpy::average" => |c| np::average(&c.x, &c.y, c.i);
    "numpy::bartlett" => |c| np::bartlett(c.n);
    "numpy::bincount" => |c| np::bincount(&c.places, c.n);
    "numpy::bitwise_and" => |c| same!(c; &c.x & &c.y, &c.x & c.i);
    "numpy::bitwise_not" => |c| !&c.x;
    "numpy::bitwise_or" => |c| &c.x | &c.y;
    "numpy::bitwise_xor" => |c| &c.x ^ &c.y;
    "numpy::blackman" => |c| np::blackman(c.n);
    "numpy::block" => |c| np::block([c.both()]);
    "numpy::broadcast_arrays" => |c| np::broadcast_arrays(c.both());
    "numpy::broadcast_to" => |c| np::broadcast_to(&c.x, [c.n, 3]);
    "numpy::cbrt" => |c| np::cbrt(&c.x);
    "numpy::ceil" => |c| np::ceil(&c.x);
    "numpy::choose" => |c| np::choose(&c.places, c.both(), np::IndexMode::Wrap);
    "numpy::clip" => |c| np::clip(&c.x, c.f, c.i);
    "numpy::clz" => |c| np::clz(&c.x);
    "numpy::column_stack" => |c| np::column_stack(&c.both());
    "numpy::complex" => |c| np::complex(&c.x, &c.y);
    "numpy::compress" => |c| np::CompressOptions::new().size(c.n).fill_value(c.f).compress(&c.places, &c.x, c.i);
    "numpy::concatenate" => |c| same!(c; np::concatenate(&c.both(), c.i), np::concatenate(&[] as &[Array], c.i));
    "numpy::conj" => |c| np::conj(&c.x);
    "numpy::convolve" => |c| np::convolve(&c.x, &c.y, np::ConvolveMode::Same);
    "numpy::copysign" => |c| np::copysign(&c.x, &c.y);
    "numpy::corrcoef" => |c| np::corrcoef(&c.x);
    "numpy::correlate" => |c| np::correlate(&c.x, &c.y, np::ConvolveMode::Valid);
    "numpy::cos" => |c| np::cos(&c.x);
    "numpy::cosh" => |c| np::cosh(&c.x);
    "numpy::count_nonzero" => |c| np::count_nonzero(&c.x, c.i);
    "numpy::cov" => |c| np::cov(&c.x);
    "numpy::cross" => |c| np::cross(&c.x, &c.y);
    "numpy::cumprod" => |c| np::cumprod(&c.x, ..);
    "numpy::cumsum" => |c| np::cumsum(&c.x, c.i);
    "numpy::cumulative_prod" => |c| np::CumulativeSumOptions::new().include_initial(true).cumulative_prod(&c.x, c.i);
    "numpy::cumulative_sum" => |c| np::CumulativeSumOptions::new().dtype(c.dtype).cumulative_sum(&c.x, c.i);
    "numpy::degrees" => |c| np::degrees(&c.x);
    "numpy::delete" => |c| same!(c; np::delete(&c.x, c.i, 0), np::delete(&c.x, [c.i, 0], ..));
    "numpy::diag" => |c| np::diag(&c.x, if c.i == i32::MIN { c.i } else { c.i.clamp(-9, 9) });
    "numpy::diag_indices" => |c| np::diag_indices(c.n.min(9)).0;
    "numpy::diag_indices_from" => |c| np::diag_indices_from(&c.x);
    "numpy::diagflat" => |c| np::diagflat(&c.x, c.i.clamp(-9, 9));
    "numpy::diagonal" => |c| np::diagonal(&c.x, c.i, c.i, 0);
    "numpy::diff" => |c| np::diff(&c.x, c.n, c.i);
    "numpy::digamma" => |c| np::digamma(&c.x);
    "numpy::digitize" => |c| np::digitize(&c.x, &c.y);
    "numpy::divide" => |c| same!(c; &c.x / &c.y, &c.x / c.i, c.f / &c.x);
    "numpy::divmod" => |c| np::divmod(&c.x, &c.y);
    "numpy::dot" => |c| same!(c; np::dot(&c.x, &c.y), np::dot(&c.x, c.i));
    "numpy::dsplit" => |c| np::dsplit(&c.x, c.n);
    "numpy::dstack" => |c| np::dstack(&c.both());
    "numpy::ediff1d" => |c| np::ediff1d(&c.x, &c.y, c.f);
    "numpy::einsum" => |c| same!(c;
        np::einsum("ij,jk->ik", &[&c.x, &c.y]),
        np::einsum("...i,i...", &[&c.x, &c.y]),
        np::einsum("ii->", &[&c.x]),
        np::einsum("é->é", &[&c.x]),
        np::einsum("->", &[]),
        np::einsum("...,......->\u{0}", &[&c.x, &c.y])
    );
    "numpy::equal" => |c| same!(c; np::equal(&c.x, &c.y), np::equal(&c.x, c.n));
    "numpy::erf" => |c| np::erf(&c.x);
    "numpy::erf_inv" => |c| np::erf_inv(&c.x);
    "numpy::erfc" => |c| np::erfc(&c.x);
    "numpy::exp" => |c| np::exp(&c.x);
    "numpy::exp2" => |c| np::exp2(&c.x);
    "numpy::expand_dims" => |c| np::expand_dims(&c.x, [c.i, c.i]);
    "numpy::expm1" => |c| np::expm1(&c.x);
    "numpy::extract" => |c| np::CompressOptions::new().size(c.n).extract(&c.mask, &c.x);
    "numpy::eye" => |c| np::eye(c.n);
    "numpy::eye_offset" => |c| np::eye_offset(3, c.n, c.i);
    "numpy::fabs" => |c| np::fabs(&c.x);
    "numpy::fill_diagonal" => |c| np::fill_diagonal(&c.x, &c.y);
    "numpy::finfo" => |c| done(np::finfo(c.dtype));
    "numpy::flatnonzero" => |c| np::flatnonzero(&c.x, c.n);
    "numpy::flip" => |c| np::flip(&c.x, [c.i, 0]);
    "numpy::fliplr" => |c| np::fliplr(&c.x);
    "numpy::flipud" => |c| np::flipud(&c.x);
    "numpy::float_power" => |c| np::float_power(&c.x, &c.y);
    "numpy::floor" => |c| np::floor(&c.x);
    "numpy::floor_divide" => |c| same!(c; np::floor_divide(&c.x, &c.y), np::floor_divide(&c.x, c.i));
    "numpy::fmax" => |c| np::fmax(&c.x, &c.y);
    "numpy::fmin" => |c| np::fmin(&c.x, c.f);
    "numpy::fmod" => |c| same!(c; np::fmod(&c.x, &c.y), np::fmod(&c.x, 0));
    "numpy::frexp" => |c| np::frexp(&c.x);
    "numpy::fromfunction" => |c| np::fromfunction(|at| at.to_vec(), &[2, c.n.min(9)]);
    "numpy::full" => |c| np::full(c.dims(), &c.x);
    "numpy::full_dtype" => |c| np::full_dtype(c.dims(), &c.x, c.dtype);
    "numpy::full_like" => |c| same!(c; np::full_like(&c.x, c.f), np::full_like(&c.x, c.i), np::full_like(&c.x, &c.y));
    "numpy::gcd" => |c| np::gcd(&c.x, &c.y);
    "numpy::geomspace" => |c| np::geomspace(c.f, 2.0, c.n);
    "numpy::gradient" => |c| np::gradient(&c.x, c.f, c.i);
    "numpy::greater" => |c| np::greater(&c.x, &c.y);
    "numpy::greater_equal" => |c| np::greater_equal(c.i, &c.x);
    "numpy::hamming" => |c| np::hamming(c.n);
    "numpy::hanning" => |c| np::hanning(c.n);
    "numpy::heaviside" => |c| np::heaviside(&c.x, &c.y);
    "numpy::histogram" => |c| np::histogram(&c.x, c.n).0;
    "numpy::histogram_bin_edges" => |c| same!(c;
        np::histogram_bin_edges(&c.x, c.n),
        np::HistogramOptions::new().range(c.f, &c.y).histogram_bin_edges(&c.x, &c.places)
    );
    "numpy::hsplit" => |c| np::hsplit(&c.x, c.n);
    "numpy::hstack" => |c| np::hstack(&c.both());
    "numpy::hypot" => |c| np::hypot(&c.x, &c.y);
    "numpy::imag" => |c| np::imag(&c.x);
    "numpy::indices" => |c| np::indices(&[2, c.n]);
    "numpy::inner" => |c| np::inner(&c.x, &c.y);
    "numpy::insert" => |c| same!(c; np::insert(&c.x, c.i, &c.y, 0), np::insert(&c.x, [0, c.i], c.f, ..));
    "numpy::integer_pow" => |c| np::integer_pow(&c.x, c.i);
    "numpy::iinfo" => |c| done(np::iinfo(c.dtype));
    "numpy::interp" => |c| np::interp(&c.x, &c.y, &c.y);
    "numpy::intersect1d" => |c| np::intersect1d(&c.x, &c.y);
    "numpy::isclose" => |c| np::isclose(&c.x, &c.y, c.f, 0.1);
    "numpy::iscomplex" => |c| np::iscomplex(&c.x);
    "numpy::isfinite" => |c| np::isfinite(&c.x);
    "numpy::isin" => |c| np::isin(&c.x, &c.y);
    "numpy::isinf" => |c| np::isinf(&c.x);
    "numpy::isnan" => |c| np::isnan(&c.x);
    "numpy::isneginf" => |c| np::isneginf(&c.x);
    "numpy::isposinf" => |c| np::isposinf(&c.x);
    "numpy::isreal" => |c| np::isreal(&c.x);
    "numpy::ix_" => |c| np::ix_(c.both());
    "numpy::kaiser" => |c| same!(c; np::kaiser(c.n, c.f), np::kaiser(3, &c.x));
    "numpy::kron" => |c| np::kron(&c.x, &c.y);
    "numpy::lcm" => |c| np::lcm(&c.x, &c.y);
    "numpy::ldexp" => |c| np::ldexp(&c.x, &c.places);
    "numpy::left_shift" => |c| same!(c; &c.x << &c.y, &c.x << c.i);
    "numpy::less" => |c| np::less(&c.x, &c.y);
    "numpy::less_equal" => |c| np::less_equal(&c.x, c.i);
    "numpy::lexsort" => |c| np::lexsort(c.both(), c.i);
    "numpy::lgamma" => |c| np::lgamma(&c.x);
    "numpy::linspace" => |c| np::linspace(c.f, -c.f, c.n);
    "numpy::log" => |c| np::log(&c.x);
    "numpy::log10" => |c| np::log10(&c.x);
    "numpy::log1p" => |c| np::log1p(&c.x);
    "numpy::log2" => |c| np::log2(&c.x);
    "numpy::logaddexp" => |c| np::logaddexp(&c.x, &c.y);
    "numpy::logaddexp2" => |c| np::logaddexp2(&c.x, &c.y);
    "numpy::logical_and" => |c| np::logical_and(&c.x, &c.y);
    "numpy::logical_not" => |c| np::logical_not(&c.x);
    "numpy::logical_or" => |c| np::logical_or(&c.x, &c.y);
    "numpy::logical_xor" => |c| np::logical_xor(&c.x, &c.y);
    "numpy::logistic" => |c| np::logistic(&c.x);
    "numpy::logspace" => |c| np::logspace(c.f, 2.0, c.n);
    "numpy::logsumexp" => |c| np::logsumexp(&c.x, c.i);
    "numpy::matmul" => |c| same!(c; np::matmul(&c.x, &c.y), np::matmul(&c.x, c.x.mt()));
    "numpy::matvec" => |c| np::matvec(&c.x, &c.y);
    "numpy::max" => |c| np::max(&c.x, c.i);
    "numpy::maximum" => |c| same!(c; np::maximum(&c.x, c.f), np::maximum(&c.x, c.n));
    "numpy::median" => |c| np::median(&c.x, c.i);
    "numpy::mgrid" => |c| np::mgrid([0..c.i.clamp(-9, 9), 0..2]);
    "numpy::minmax" => |c| np::minmax(&c.x, c.i);
    "numpy::min" => |c| np::min(&c.x, c.i);
    "numpy::modf" => |c| np::modf(&c.x);
    "numpy::mt" => |c| np::mt(&c.x);
    "numpy::nan_to_num" => |c| np::nan_to_num(&c.x);
    "numpy::nanargmax" => |c| np::nanargmax(&c.x, c.i);
    "numpy::nanargmin" => |c| np::nanargmin(&c.x, ..);
    "numpy::nancumprod" => |c| np::nancumprod(&c.x, c.i);
    "numpy::nancumsum" => |c| np::nancumsum(&c.x, ..);
    "numpy::nanmax" => |c| np::nanmax(&c.x, c.i);
    "numpy::nanmean" => |c| np::nanmean(&c.x, c.i);
    "numpy::nanmedian" => |c| np::nanmedian(&c.x, c.i);
    "numpy::nanmin" => |c| np::nanmin(&c.x, c.i);
    "numpy::nanpercentile" => |c| np::nanpercentile(&c.x, c.f, c.i);
    "numpy::nanprod" => |c| np::nanprod(&c.x, c.i);
    "numpy::nanstd" => |c| np::nanstd(&c.x, c.i);
    "numpy::nansum" => |c| np::nansum(&c.x, c.i);
    "numpy::nanvar" => |c| np::nanvar(&c.x, c.i);
    "numpy::nonzero" => |c| np::nonzero(&c.x, c.n);
    "numpy::ogrid" => |c| np::ogrid([0..c.i.clamp(-9, 9), 0..2]);
    "numpy::over" => |c| np::sum(&c.x, over(c.i));
    "numpy::mean" => |c| np::mean(&c.x, [c.i, 0]);
    "numpy::meshgrid" => |c| same!(c; np::meshgrid(c.both()), np::meshgrid([&c.x, &c.x, &c.y]), np::meshgrid(Vec::<Array>::new()));
    "numpy::minimum" => |c| np::minimum(&c.x, &c.y);
    "numpy::moveaxis" => |c| np::moveaxis(&c.x, 0, c.i);
    "numpy::multiply" => |c| same!(c; &c.x * &c.y, c.f * &c.x);
    "numpy::negative" => |c| -&c.x;
    "numpy::nextafter" => |c| np::nextafter(&c.x, &c.y);
    "numpy::not_equal" => |c| np::not_equal(&c.x, c.i);
    "numpy::ones" => |c| same!(c; np::ones(c.dims()), np::ones([c.n, 0]));
    "numpy::ones_dtype" => |c| np::ones_dtype([c.n], c.dtype);
    "numpy::ones_like" => |c| np::ones_like(&c.x);
    "numpy::nanquantile" => |c| np::nanquantile(&c.x, &c.y, c.i);
    "numpy::outer" => |c| np::outer(&c.x, &c.y);
    "numpy::pad" => |c| same!(c;
        np::pad(&c.x, &c.widths(), np::PadMode::Constant(c.f)),
        np::pad(&c.x, &vec![(2, 1); c.x.ndim()], np::PadMode::Edge),
        np::pad(&c.x, &vec![(0, 3); c.x.ndim()], np::PadMode::Reflect),
        np::pad(&c.x, &vec![(5, 0); c.x.ndim()], np::PadMode::Wrap),
        np::pad(&c.x, &[(usize::MAX, usize::MAX)], np::PadMode::Wrap)
    );
    "numpy::packbits" => |c| np::packbits(&c.x, np::BitOrder::Little);
    "numpy::partition" => |c| np::partition(&c.x, c.i, c.i);
    "numpy::percentile" => |c| np::percentile(&c.x, c.f, c.i);
    "numpy::polyadd" => |c| np::polyadd(&c.x, &c.y);
    "numpy::polyder" => |c| np::polyder(&c.x, c.n.min(5));
    "numpy::polydiv" => |c| np::polydiv(&c.x, &c.y);
    "numpy::polyint" => |c| np::polyint(&c.x, c.n.min(5), c.f);
    "numpy::polymul" => |c| np::polymul(&c.x, &c.y);
    "numpy::polysub" => |c| np::polysub(&c.x, &c.y);
    "numpy::piecewise" => |c| np::piecewise(&c.x, [&c.mask], &[&|x| x * 2]);
    "numpy::polyval" => |c| np::polyval(&c.x, &c.y);
    "numpy::population_count" => |c| np::population_count(&c.x);
    "numpy::positive" => |c| np::positive(&c.x);
    "numpy::power" => |c| same!(c; np::power(&c.x, &c.y), np::power(c.f, &c.x), np::power(c.i, &c.x), np::power(&c.x, c.n));
    "numpy::prod" => |c| np::prod(&c.x, ..);
    "numpy::ptp" => |c| np::ptp(&c.x, c.i);
    "numpy::put_along_axis" => |c| np::put_along_axis(&c.x, &c.places, &c.y, c.i);
    "numpy::quantile" => |c| same!(c; np::quantile(&c.x, c.f, c.i), np::quantile(&c.x, &c.y, ..));
    "numpy::radians" => |c| np::radians(&c.x);
    "numpy::ravel" => |c| np::ravel(&c.x);
    "numpy::ravel_multi_index" => |c| np::ravel_multi_index([&c.places], &[c.n], np::IndexMode::Clip);
    "numpy::real" => |c| np::real(&c.x);
    "numpy::reciprocal" => |c| np::reciprocal(&c.x);
    "numpy::remainder" => |c| same!(c; &c.x % &c.y, &c.x % c.i, &c.x % c.f);
    "numpy::repeat" => |c| same!(c; np::repeat(&c.x, c.n, c.i), np::repeat(&c.x, c.n, ..));
    "numpy::reshape" => |c| same!(c; np::reshape(&c.x, c.dims()), np::reshape(&c.x, [usize::MAX]), np::reshape(&c.x, ()));
    "numpy::resize" => |c| np::resize(&c.x, c.dims());
    "numpy::right_shift" => |c| same!(c; &c.x >> &c.y, &c.x >> c.i);
    "numpy::rint" => |c| np::rint(&c.x);
    "numpy::roll" => |c| np::roll(&c.x, i64::MAX, c.i);
    "numpy::rollaxis" => |c| np::rollaxis(&c.x, c.i, 0);
    "numpy::rot90" => |c| np::rot90(&c.x, c.i, (0, c.i));
    "numpy::round" => |c| np::round(&c.x);
    "numpy::rsqrt" => |c| np::rsqrt(&c.x);
    "numpy::searchsorted" => |c| same!(c; np::searchsorted(&c.x, c.f), np::searchsorted(&c.x, &c.y));
    "numpy::segment_max" => |c| np::segment_max(&c.x, &c.places, c.n);
    "numpy::segment_min" => |c| np::segment_min(&c.x, &c.places, c.n);
    "numpy::segment_prod" => |c| np::segment_prod(&c.x, &c.places, c.n);
    "numpy::segment_sum" => |c| np::segment_sum(&c.x, &c.places, c.n);
    "numpy::select" => |c| np::select([&c.mask], [&c.x], &c.y);
    "numpy::setdiff1d" => |c| np::setdiff1d(&c.x, &c.y);
    "numpy::setxor1d" => |c| np::setxor1d(&c.x, &c.y);
    "numpy::sign" => |c| np::sign(&c.x);
    "numpy::signbit" => |c| np::signbit(&c.x);
    "numpy::sin" => |c| np::sin(&c.x);
    "numpy::sinc" => |c| np::sinc(&c.x);
    "numpy::sinh" => |c| np::sinh(&c.x);
    "numpy::sort_complex" => |c| np::sort_complex(&c.x);
    "numpy::sort" => |c| np::sort(&c.x, c.i);
    "numpy::split" => |c| np::split(&c.x, c.n, c.i);
    "numpy::sqrt" => |c| np::sqrt(&c.x);
    "numpy::square" => |c| np::square(&c.x);
    "numpy::squeeze" => |c| np::squeeze(&c.x, c.i);
    "numpy::stack" => |c| same!(c; np::stack(&c.both(), c.i), np::stack(&[] as &[Array], 0));
    "numpy::std" => |c| np::std(&c.x, ..);
    "numpy::subtract" => |c| same!(c; &c.x - &c.y, c.i - &c.x);
    "numpy::sum" => |c| np::sum(&c.x, c.i);
    "numpy::swapaxes" => |c| np::swapaxes(&c.x, 0, c.i);
    "numpy::take" => |c| same!(c; np::take(&c.x, &c.places, c.i), np::take(&c.x, c.places.expand_dims(0), ..));
    "numpy::take_along_axis" => |c| same!(c;
        np::take_along_axis(&c.x, &c.places, ..),
        np::take_along_axis(&c.x, &c.x, c.i)
    );
    "numpy::tan" => |c| np::tan(&c.x);
    "numpy::tanh" => |c| np::tanh(&c.x);
    "numpy::tensordot" => |c| same!(c; np::tensordot(&c.x, &c.y, c.n), np::tensordot(&c.x, &c.y, ([c.i], [0])));
    "numpy::tile" => |c| same!(c; np::tile(&c.x, &[c.n]), np::tile(&c.x, &[c.n, 1, c.n, 2]));
    "numpy::top_k" => |c| same!(c; np::top_k(&c.x, c.n, c.i, np::TopKMode::Smallest), np::top_k(&c.x, c.n, c.i, np::TopKMode::Largest));
    "numpy::trace" => |c| np::trace(&c.x);
    "numpy::transpose" => |c| np::transpose(&c.x, &[c.i, 0]);
    "numpy::trapezoid" => |c| np::trapezoid(&c.x, c.f, c.i);
    "numpy::tri" => |c| np::tri(c.n.min(9), 3, c.i);
    "numpy::tril" => |c| np::tril(&c.x, c.i);
    "numpy::tril_indices" => |c| np::tril_indices(c.n, c.i).0;
    "numpy::tril_indices_from" => |c| np::tril_indices_from(&c.x, c.i);
    "numpy::triu" => |c| np::triu(&c.x, c.i);
    "numpy::triu_indices" => |c| np::triu_indices(c.n, c.i).0;
    "numpy::triu_indices_from" => |c| np::triu_indices_from(&c.x, c.i);
    "numpy::trunc" => |c| np::trunc(&c.x);
    "numpy::union1d" => |c| np::union1d(&c.x, &c.y, c.n);
    "numpy::unique" => |c| np::unique(&c.x, c.n);
    "numpy::unique_all" => |c| {
        let result = np::UniqueOptions::new().axis(c.i).fill_value(c.f).unique_all(&c.x, c.n);
        same!(c; result.values, result.indices, result.inverse_indices, result.counts)
    };
    "numpy::unique_counts" => |c| np::unique_counts(&c.x, c.n);
    "numpy::unique_inverse" => |c| np::unique_inverse(&c.x, c.n);
    "numpy::unpackbits" => |c| np::unpackbits(&c.x, np::BitOrder::Big);
    "numpy::unravel_index" => |c| np::unravel_index(&c.places, &c.sizes());
    "numpy::unwrap" => |c| np::unwrap(&c.x, c.f, c.i);
    "numpy::vander" => |c| np::vander(&c.x, c.n.min(9));
    "numpy::var" => |c| np::var(&c.x, c.i);
    "numpy::vdot" => |c| np::vdot(&c.x, &c.y);
    "numpy::vecdot" => |c| np::vecdot(&c.x, &c.y);
    "numpy::vecmat" => |c| np::vecmat(&c.x, &c.y);
    "numpy::vsplit" => |c| np::vsplit(&c.x, c.n);
    "numpy::vstack" => |c| np::vstack(&c.both());
    "numpy::where_" => |c| same!(c; np::where_(&c.mask, &c.x, &c.y), np::where_(&c.x, c.f, c.i), np::where_(&c.x, &c.y, c.n));
    "numpy::zeros" => |c| np::zeros([c.n, c.n]);
    "numpy::zeros_dtype" => |c| np::zeros_dtype(c.dims(), c.dtype);
    "numpy::zeros_like" => |c| np::zeros_like(&c.x);
    "random::PRNGKey" => |c| same!(c; random::PRNGKey(c.i), random::PRNGKey(&c.x));
    "random::ball" => |c| random::ball(&c.key, 2, c.f, [c.n, 2]);
    "random::ball_dtype" => |c| random::ball_dtype(&c.key, c.n, 2.0, [2], c.dtype);
    "random::bernoulli" => |c| same!(c; random::bernoulli(&c.key, c.f, [3]), random::bernoulli(&c.key, &c.x, [c.n]));
    "random::beta" => |c| random::beta(&c.key, &c.x, &c.y, c.x.shape());
    "random::beta_approximate" => |c| random::beta_approximate(&c.key, &c.x, &c.y, c.x.shape());
    "random::beta_approximate_dtype" => |c| random::beta_approximate_dtype(&c.key, c.f, c.f, [c.n, 2], c.dtype);
    "random::beta_dtype" => |c| random::beta_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::binomial" => |c| random::binomial(&c.key, &c.x, &c.y, c.x.shape());
    "random::binomial_dtype" => |c| random::binomial_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::bits" => |c| random::bits(&c.key, c.dims());
    "random::bits_dtype" => |c| random::bits_dtype(&c.key, [c.n], c.dtype);
    "random::categorical" => |c| random::categorical(&c.key, &c.x, c.i);
    "random::categorical_shape" => |c| random::categorical_shape(&c.key, &c.x, c.i, Some(&[c.n]));
    "random::cauchy" => |c| random::cauchy(&c.key, [c.n]);
    "random::cauchy_dtype" => |c| random::cauchy_dtype(&c.key, 3, c.dtype);
    "random::chisquare" => |c| random::chisquare(&c.key, &c.x, c.x.shape());
    "random::chisquare_approximate" => |c| random::chisquare_approximate(&c.key, &c.x, c.x.shape());
    "random::chisquare_approximate_dtype" => |c| random::chisquare_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::chisquare_dtype" => |c| random::chisquare_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::choice" => |c| same!(c;
        random::ChoiceOptions::default().replace(c.i > 0).choice(&c.key, c.i, [2]),
        random::choice(&c.key, c.n, [2]),
        random::ChoiceOptions::default().replace(c.i > 0).axis(c.i).choice(&c.key, &c.x, [c.n]),
        random::ChoiceOptions::default().replace(c.i > 0).p(&c.y).choice(&c.key, &c.x, [2]),
        random::ChoiceOptions::default().p(&c.x).choice(&c.key, c.n, [2])
    );
    "random::clone" => |c| same!(c; random::clone(&c.key), random::clone(&c.x));
    "random::dirichlet" => |c| random::dirichlet(&c.key, &c.x, c.x.shape());
    "random::dirichlet_dtype" => |c| random::dirichlet_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::double_sided_maxwell" => |c| random::double_sided_maxwell(&c.key, &c.x, &c.y, c.x.shape());
    "random::double_sided_maxwell_dtype" => |c|
        random::double_sided_maxwell_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::exponential" => |c| random::exponential(&c.x, [c.n]);
    "random::exponential_dtype" => |c| random::exponential_dtype(&c.key, [2, 0], c.dtype);
    "random::f" => |c| random::f(&c.key, &c.x, &c.y, c.x.shape());
    "random::f_dtype" => |c| random::f_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::fold_in" => |c| same!(c; random::fold_in(&c.key, c.i), random::fold_in(&c.key, &c.x), random::fold_in(&c.key, c.n));
    "random::gamma" => |c| random::gamma(&c.key, &c.x, c.x.shape());
    "random::gamma_approximate" => |c| random::gamma_approximate(&c.key, &c.x, c.x.shape());
    "random::gamma_approximate_dtype" => |c| random::gamma_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::gamma_dtype" => |c| random::gamma_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::generalized_normal" => |c| random::generalized_normal(&c.key, c.f, [c.n, 2]);
    "random::generalized_normal_dtype" => |c| random::generalized_normal_dtype(&c.key, c.f, [2], c.dtype);
    "random::geometric" => |c| random::geometric(&c.key, &c.x, c.x.shape());
    "random::geometric_dtype" => |c| random::geometric_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::gumbel" => |c| random::gumbel(&c.key, c.dims());
    "random::gumbel_dtype" => |c| random::gumbel_dtype(&c.key, [c.n, 0], c.dtype);
    "random::key" => |c| same!(c; random::key(c.n), random::key(c.f));
    "random::key_data" => |c| same!(c; random::key_data(&c.key), random::key_data(&c.x));
    "random::key_impl" => |c| random::key_impl(&c.key).map(done);
    "random::laplace" => |c| random::laplace(&c.key, c.n);
    "random::laplace_dtype" => |c| random::laplace_dtype(&c.key, c.x.shape(), c.dtype);
    "random::loggamma" => |c| random::loggamma(&c.key, &c.x, c.x.shape());
    "random::loggamma_approximate" => |c| random::loggamma_approximate(&c.key, &c.x, c.x.shape());
    "random::loggamma_approximate_dtype" => |c| random::loggamma_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::loggamma_dtype" => |c| random::loggamma_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::logistic" => |c| random::logistic(&c.key, c.n);
    "random::logistic_dtype" => |c| random::logistic_dtype(&c.key, c.x.shape(), c.dtype);
    "random::lognormal" => |c| random::lognormal(&c.key, &c.x, c.x.shape());
    "random::lognormal_dtype" => |c| random::lognormal_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::maxwell" => |c| random::maxwell(&c.key, c.dims());
    "random::maxwell_dtype" => |c| random::maxwell_dtype(&c.key, [c.n, 0], c.dtype);
    "random::multinomial" => |c| same!(c; random::multinomial(&c.key, c.n, &c.x), random::multinomial(&c.key, &c.y, &c.x));
    "random::multivariate_normal" => |c| random::multivariate_normal(&c.key, &c.x, &c.y, [c.n, 2]);
    "random::normal" => |c| random::normal(&c.key, c.dims());
    "random::normal_dtype" => |c| same!(c; random::normal_dtype(&c.key, c.x.shape(), c.dtype), random::normal_dtype(&c.key, c.n, c.dtype));
    "random::orthogonal" => |c| random::orthogonal(&c.key, c.n);
    "random::orthogonal_dtype" => |c| random::orthogonal_dtype(&c.key, [c.n, 2], [1, 0], c.dtype);
    "random::pareto" => |c| random::pareto(&c.key, &c.x, c.x.shape());
    "random::pareto_dtype" => |c| random::pareto_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::permutation" => |c| same!(c;
        random::permutation(&c.key, c.n),
        random::permutation(&c.key, c.i),
        random::permutation(&c.key, &c.x),
        random::PermutationOptions::default().axis(c.i).independent(c.i > 0).permutation(&c.key, &c.x)
    );
    "random::poisson" => |c| random::poisson(&c.key, &c.x, c.x.shape());
    "random::poisson_approximate" => |c| random::poisson_approximate(&c.key, &c.x, c.x.shape());
    "random::poisson_approximate_dtype" => |c| random::poisson_approximate_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::poisson_dtype" => |c| random::poisson_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::rademacher" => |c| random::rademacher(&c.key, c.dims());
    "random::rademacher_dtype" => |c| random::rademacher_dtype(&c.key, c.x.shape(), c.dtype);
    "random::randint" => |c| same!(c; random::randint(&c.key, 3, c.i, c.n), random::randint(&c.key, [c.n], &c.x, &c.y));
    "random::randint_dtype" => |c| random::randint_dtype(&c.key, c.x.shape(), &c.x, c.n, c.dtype);
    "random::rayleigh" => |c| random::rayleigh(&c.key, &c.x, c.x.shape());
    "random::rayleigh_dtype" => |c| random::rayleigh_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::split" => |c| same!(c; random::split(&c.key, c.n), random::split(&c.x, 2), random::split(&c.key, c.dims()));
    "random::split_n" => |c| same!(c; random::split_n::<3>(&c.key)[2].clone(), random::split_n::<2>(&c.x)[0].clone());
    "random::t" => |c| random::t(&c.key, &c.x, c.x.shape());
    "random::t_dtype" => |c| random::t_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::triangular" => |c| random::triangular(&c.key, &c.x, &c.y, c.f, c.x.shape());
    "random::triangular_dtype" => |c| random::triangular_dtype(&c.key, c.f, &c.x, c.i, [c.n, 2], c.dtype);
    "random::truncated_normal" => |c| random::truncated_normal(&c.key, c.f, c.i, 2);
    "random::truncated_normal_dtype" => |c| random::truncated_normal_dtype(&c.key, &c.x, &c.y, c.x.shape(), c.dtype);
    "random::uniform" => |c| random::uniform(&c.key, c.dims());
    "random::uniform_dtype" => |c| random::uniform_dtype(&c.key, c.x.shape(), c.dtype, &c.x, c.f);
    "random::wald" => |c| random::wald(&c.key, &c.x, c.x.shape());
    "random::wald_dtype" => |c| random::wald_dtype(&c.key, c.f, [c.n, 2], c.dtype);
    "random::weibull_min" => |c| random::weibull_min(&c.key, &c.x, &c.y, c.x.shape());
    "random::weibull_min_dtype" => |c| random::weibull_min_dtype(&c.key, c.f, &c.x, [c.n, 2], c.dtype);
    "random::wrap_key_data" => |c| random::wrap_key_data(&c.places);
    "special::bernoulli" => |c| special::bernoulli(c.n.min(64));
    "special::bessel_jn" => |c| special::bessel_jn(&c.x, 2, 20);
    "special::beta" => |c| special::beta(&c.x, &c.y);
    "special::betainc" => |c| special::betainc(&c.x, &c.y, c.f);
    "special::betaln" => |c| special::betaln(&c.x, &c.y);
    "special::boxcox" => |c| special::boxcox(&c.x, &c.y);
    "special::boxcox1p" => |c| special::boxcox1p(&c.x, &c.y);
    "special::comb" => |c| special::comb(&c.x, &c.y, c.i > 0);
    "special::dawsn" => |c| special::dawsn(&c.x);
    "special::digamma" => |c| special::digamma(&c.x);
    "special::entr" => |c| special::entr(&c.x);
    "special::erf" => |c| special::erf(&c.x);
    "special::erfc" => |c| special::erfc(&c.x);
    "special::erfcx" => |c| special::erfcx(&c.x);
    "special::erfcinv" => |c| special::erfcinv(&c.x);
    "special::erfinv" => |c| special::erfinv(&c.x);
    "special::exp1" => |c| special::exp1(&c.x);
    "special::expi" => |c| special::expi(&c.x);
    "special::expit" => |c| special::expit(&c.x);
    "special::expn" => |c| special::expn(&c.x, &c.y);
    "special::factorial" => |c| special::factorial(&c.x);
    "special::fresnel" => |c| same!(c; special::fresnel(&c.x).0, special::fresnel(&c.x).1);
    "special::gamma" => |c| special::gamma(&c.x);
    "special::gammainc" => |c| special::gammainc(&c.x, &c.y);
    "special::gammaincc" => |c| special::gammaincc(&c.x, &c.y);
    "special::gammaln" => |c| special::gammaln(&c.x);
    "special::gammasgn" => |c| special::gammasgn(&c.x);
    "special::i0" => |c| special::i0(&c.x);
    "special::i0e" => |c| special::i0e(&c.x);
    "special::i1" => |c| special::i1(&c.x);
    "special::i1e" => |c| special::i1e(&c.x);
    "special::kl_div" => |c| special::kl_div(&c.x, &c.y);
    "special::log_ndtr" => |c| special::log_ndtr(&c.x);
    "special::loggamma" => |c| special::loggamma(&c.x);
    "special::logit" => |c| special::logit(&c.x);
    "special::logsumexp" => |c| special::logsumexp(&c.x, c.i);
    "special::multigammaln" => |c| special::multigammaln(&c.x, c.n.min(100) as u32);
    "special::ndtr" => |c| special::ndtr(&c.x);
    "special::ndtri" => |c| special::ndtri(&c.x);
    "special::owens_t" => |c| special::owens_t(&c.x, &c.y);
    "special::poch" => |c| special::poch(&c.x, &c.y);
    "special::polygamma" => |c| special::polygamma(&c.x, &c.y);
    "special::rel_entr" => |c| special::rel_entr(&c.x, &c.y);
    "special::sici" => |c| same!(c; special::sici(&c.x).0, special::sici(&c.x).1);
    "special::spence" => |c| special::spence(&c.x);
    "special::xlog1py" => |c| special::xlog1py(&c.x, &c.y);
    "special::xlogy" => |c| special::xlogy(&c.x, &c.y);
    "special::zeta" => |c| special::zeta(&c.x, &c.y);
    "spmd::all_gather" => |c| c.mapped(|x| all_gather(x, "i", c.i));
    "spmd::all_gather_invariant" => |c| c.mapped(|x| all_gather_invariant(x, "i", c.i));
    "spmd::all_gather_tiled" => |c| c.mapped(|x| all_gather_tiled(x, "i", c.i));
    "spmd::all_to_all" => |c| c.mapped(|x| all_to_all(x, "i", c.i, 0));
    "spmd::all_to_all_tiled" => |c| c.mapped(|x| all_to_all_tiled(x, "i", 0, c.i));
    "spmd::axis_index" => |c| same!(c; c.mapped(|_| axis_index("i")), axis_index("none"), axis_index("é\"\n"));
    "spmd::axis_size" => |c| axis_size("none").map(done).and(c.mapped(|x| x * axis_size("i").unwrap_or(0)));
    "spmd::pbroadcast" => |c| c.mapped(|x| pbroadcast(x, "i", c.n));
    "spmd::pcast" => |c| c.mapped(|x| pcast(x, "i"));
    "spmd::pcast_to" => |c| same!(c; c.mapped(|x| pcast_to(x, "i", lax::CastTo::Unreduced)), pcast_to(c.x.clone(), "none", lax::CastTo::Reduced));
    "spmd::pmax" => |c| same!(c; c.mapped(|x| pmax(x, "i")), pmax(c.x.clone(), "none"));
    "spmd::pmean" => |c| c.mapped(|x| pmean(x, "i"));
    "spmd::pmin" => |c| c.mapped(|x| pmin(x, ["i", "i"]));
    "spmd::ppermute" => |c| c.mapped(|x| ppermute(x, "i", [(c.n, 0), (0, c.n)]));
    "spmd::pshift" => |c| same!(c; c.mapped(|x| pshift(x, "i", c.i)), pshift(c.x.clone(), "none", 1));
    "spmd::pshuffle" => |c| c.mapped(|x| pshuffle(x, "i", [c.n, 1, 2]));
    "spmd::psum" => |c| same!(c; c.mapped(|x| psum(x, "i")), psum(c.x.clone(), "é"));
    "spmd::psum_scatter" => |c| c.mapped(|x| psum_scatter(x, "i", c.i));
    "spmd::psum_scatter_tiled" => |c| c.mapped(|x| psum_scatter_tiled(x, "i", c.i));
    "spmd::pswapaxes" => |c| c.mapped(|x| pswapaxes(x, "i", c.i));
    "spmd::ragged_all_to_all" => |c| c.mapped(|x| {
        let places = &c.places;
        let slices = RaggedSlices { input_offsets: places, send_sizes: places, output_offsets: places, recv_sizes: places };
        ragged_all_to_all(x.clone(), x, slices, "i")
    });
}
