//! Methods of PyTorch, candle, burn and ndarray that arrays do not have, each with what to write instead.

use super::Operator;
use crate::core::array::Array;

/// Defines methods that cannot be called, with their arguments and with the compile error of a call. Each has a module of
/// its name for its trait. The lifetime defers the check of the bound to the call.
macro_rules! methods {
    ($($name:ident($($argument:ident),*) $instead:literal;)*) => {
        $(
            #[doc(hidden)]
            pub mod $name {
                #[diagnostic::on_unimplemented(message = $instead, label = "not a method of arrays")]
                pub trait Method {}
            }
        )*

        #[doc(hidden)]
        #[allow(clippy::len_without_is_empty, clippy::wrong_self_convention, clippy::should_implement_trait)]
        impl Array {
            $(
                pub fn $name(&self, $($argument: impl Sized),*) -> Array
                where
                    for<'a> &'a Operator: $name::Method,
                {
                    $(let _ = $argument;)*
                    self.clone()
                }
            )*
        }
    };
}

methods! {
    absolute() "`Array` has no method `absolute`: write `x.abs()`";
    acos() "`Array` has no method `acos`: write `x.arccos()`";
    acosh() "`Array` has no method `acosh`: write `x.arccosh()`";
    add_scalar(number) "`Array` has no method `add_scalar`: write `x + 1.0`";
    addmm(first, second) "`Array` has no method `addmm`: write `x + a.matmul(&b)`";
    affine(factor, summand) "`Array` has no method `affine`: write `x * a + b`";
    allclose(other) "`Array` has no method `allclose`: write `allclose(&x, &y, 1e-5, 1e-8)?`, which returns a `bool`";
    amax(axis) "`Array` has no method `amax`: write `x.max(axis)`";
    amin(axis) "`Array` has no method `amin`: write `x.min(axis)`";
    and(other) "`Array` has no method `and`: write `x & y`";
    angle() "`Array` has no method `angle`: write `angle(&x)`";
    arctan2(other) "`Array` has no method `arctan2`: write `arctan2(&x, &y)`";
    argwhere() "`Array` has no method `argwhere`: write `argwhere(&x, size)`, or `argwhere(&x, None)` outside `jit`";
    as_slice() "`Array` has no method `as_slice`: write `x.view::<f32>()?`";
    asin() "`Array` has no method `asin`: write `x.arcsin()`";
    asinh() "`Array` has no method `asinh`: write `x.arcsinh()`";
    atan() "`Array` has no method `atan`: write `x.arctan()`";
    atan2(other) "`Array` has no method `atan2`: write `arctan2(&x, &y)`";
    atanh() "`Array` has no method `atanh`: write `x.arctanh()`";
    backward() "`Array` has no method `backward`: write the loss as a function and differentiate it: `grad(loss).call(w)?`";
    bfloat16() "`Array` has no method `bfloat16`: write `x.astype(DType::Bf16)`";
    bincount() "`Array` has no method `bincount`: write `bincount(&x, length)`";
    bitwise_and(other) "`Array` has no method `bitwise_and`: write `x & y`";
    bitwise_or(other) "`Array` has no method `bitwise_or`: write `x | y`";
    bitwise_xor(other) "`Array` has no method `bitwise_xor`: write `x ^ y`";
    bmm(other) "`Array` has no method `bmm`: write `x.matmul(&y)`, which also multiplies batches";
    bool() "`Array` has no method `bool`: write `x.astype(DType::Bool)`";
    broadcast(shape) "`Array` has no method `broadcast`: write `x.broadcast_to(shape)`";
    broadcast_add(other) "`Array` has no method `broadcast_add`: write `x + y`, which broadcasts";
    broadcast_as(shape) "`Array` has no method `broadcast_as`: write `x.broadcast_to(shape)`";
    broadcast_div(other) "`Array` has no method `broadcast_div`: write `x / y`, which broadcasts";
    broadcast_matmul(other) "`Array` has no method `broadcast_matmul`: write `x.matmul(&y)`, which broadcasts batches";
    broadcast_mul(other) "`Array` has no method `broadcast_mul`: write `x * y`, which broadcasts";
    broadcast_sub(other) "`Array` has no method `broadcast_sub`: write `x - y`, which broadcasts";
    cat(others) "`Array` has no method `cat`: write `concatenate([&x, &y], axis)`";
    cholesky() "`Array` has no method `cholesky`: write `linalg::cholesky(&x)`";
    chunk(count, axis) "`Array` has no method `chunk`: write `x.split(count, axis)?`";
    clamp(low, high) "`Array` has no method `clamp`: write `x.clip(low, high)`";
    clamp_max(high) "`Array` has no method `clamp_max`: write `x.minimum(high)`";
    clamp_min(low) "`Array` has no method `clamp_min`: write `x.maximum(low)`";
    column(index) "`Array` has no method `column`: write `x.get((.., i))`";
    concat(others) "`Array` has no method `concat`: write `concatenate([&x, &y], axis)`";
    conjugate() "`Array` has no method `conjugate`: write `x.conj()`";
    contiguous() "`Array` has no method `contiguous`: arrays need none, because XLA chooses their layouts";
    conv2d(kernel) "`Array` has no method `conv2d`: write the layer `Conv::new(3, 16, [3, 3], &mut rngs)` of `shardax-nn`, or `lax::conv_general_dilated`";
    copysign(other) "`Array` has no method `copysign`: write `copysign(&x, &y)`";
    corrcoef() "`Array` has no method `corrcoef`: write `corrcoef(&x)`";
    count_nonzero(axis) "`Array` has no method `count_nonzero`: write `count_nonzero(&x, axis)`";
    cov() "`Array` has no method `cov`: write `cov(&x)`";
    cpu() "`Array` has no method `cpu`: write `x.to_vec::<f32>()?` to read the elements on the host";
    cross(other) "`Array` has no method `cross`: write `cross(&x, &y)`";
    cuda() "`Array` has no method `cuda`: write `device_put(&x, &devices()?[0])?`";
    data() "`Array` has no method `data`: write `x.to_vec::<f32>()?`";
    det() "`Array` has no method `det`: write `linalg::det(&x)`";
    detach() "`Array` has no method `detach`: write `stop_gradient(x)`";
    device() "`Array` has no method `device`: write `x.devices()`";
    diag() "`Array` has no method `diag`: write `diag(&x, 0)`";
    diff() "`Array` has no method `diff`: write `diff(&x, 1, -1)`";
    dim() "`Array` has no method `dim`: write `x.ndim()`";
    dims() "`Array` has no method `dims`: write `x.shape()`";
    dims1() "`Array` has no method `dims1`: write `x.shape()[0]`";
    dims2() "`Array` has no method `dims2`: write `x.shape()`, whose sizes are `x.shape()[0]` and `x.shape()[1]`";
    dims3() "`Array` has no method `dims3`: write `x.shape()`, whose sizes are `x.shape()[0]` and so on";
    dims4() "`Array` has no method `dims4`: write `x.shape()`, whose sizes are `x.shape()[0]` and so on";
    div_scalar(number) "`Array` has no method `div_scalar`: write `x / 2.0`";
    divide(other) "`Array` has no method `divide`: write `x / y`";
    double() "`Array` has no method `double`: write `x.astype(DType::F64)`";
    elem_count() "`Array` has no method `elem_count`: write `x.size()`";
    elu() "`Array` has no method `elu`: write `nn::elu(&x, 1.0)`";
    equal_elem(number) "`Array` has no method `equal_elem`: write `x.equal(number)`";
    erfinv() "`Array` has no method `erfinv`: write `scipy::special::erfinv(&x)`";
    expand(shape) "`Array` has no method `expand`: write `x.broadcast_to(shape)`";
    expand_as(other) "`Array` has no method `expand_as`: write `x.broadcast_to(y.shape())`";
    expect(message) "`Array` has no method `expect`: an operation returns an array, not a `Result`; `x.check()?` returns its error here";
    first() "`Array` has no method `first`: write `x.get(0)`";
    fix() "`Array` has no method `fix`: write `x.trunc()`";
    fliplr() "`Array` has no method `fliplr`: write `x.flip(1)`";
    flipud() "`Array` has no method `flipud`: write `x.flip(0)`";
    float() "`Array` has no method `float`: write `x.astype(DType::F32)`";
    floor_divide(other) "`Array` has no method `floor_divide`: write `floor_divide(&x, &y)`";
    fmax(other) "`Array` has no method `fmax`: write `fmax(&x, &y)`";
    fmin(other) "`Array` has no method `fmin`: write `fmin(&x, &y)`";
    fmod(other) "`Array` has no method `fmod`: write `fmod(&x, &y)`";
    gather(axis, indices) "`Array` has no method `gather`: write `x.take_along_axis(&indices, axis)`";
    gelu() "`Array` has no method `gelu`: write `nn::gelu(&x)`";
    grad() "`Array` has no method `grad`: gradients are values that `grad(loss).call(w)?` returns, and no array keeps one";
    greater_elem(number) "`Array` has no method `greater_elem`: write `x.greater(number)`";
    greater_than(other) "`Array` has no method `greater_than`: write `x.greater(y)`";
    histc(bins) "`Array` has no method `histc`: write `histogram(&x, bins)`";
    hypot(other) "`Array` has no method `hypot`: write `hypot(&x, &y)`";
    index_add(axis, indices, values) "`Array` has no method `index_add`: write `x.at(&indices).add(&values)`, or `x.at((.., &indices))` for another axis";
    index_axis(axis, index) "`Array` has no method `index_axis`: write `x.get(i)`, or `x.get((.., i))` for another axis";
    index_copy(axis, indices, values) "`Array` has no method `index_copy`: write `x.at(&indices).set(&values)`, or `x.at((.., &indices))` for another axis";
    index_fill(axis, indices, value) "`Array` has no method `index_fill`: write `x.at(&indices).set(value)`, or `x.at((.., &indices))` for another axis";
    index_select(axis, indices) "`Array` has no method `index_select`: write `x.take(indices, axis)`";
    inner(other) "`Array` has no method `inner`: write `inner(&x, &y)`";
    insert_axis(axis) "`Array` has no method `insert_axis`: write `x.expand_dims(axis)`";
    int() "`Array` has no method `int`: write `x.astype(DType::I32)`";
    into_data() "`Array` has no method `into_data`: write `x.to_vec::<f32>()?`";
    into_raw_vec() "`Array` has no method `into_raw_vec`: write `x.to_vec::<f32>()?`";
    into_scalar() "`Array` has no method `into_scalar`: write `x.item::<f32>()?`";
    into_shape(shape) "`Array` has no method `into_shape`: write `x.reshape(shape)`";
    into_vec() "`Array` has no method `into_vec`: write `x.to_vec::<f32>()?`";
    inverse() "`Array` has no method `inverse`: write `linalg::inv(&x)`";
    is_empty() "`Array` has no method `is_empty`: write `x.size() == 0`";
    isclose(other) "`Array` has no method `isclose`: write `isclose(&x, &y, 1e-5, 1e-8)`";
    iter_mut() "`Array` has no method `iter_mut`: arrays do not change; write operations on the array, such as `x.exp() + 1`, or `x.at(0).set(value)`";
    keepdims() "`Array` has no method `keepdims`: write `x.sum_keepdims(axis)`, `x.mean_keepdims(axis)` and the like";
    kron(other) "`Array` has no method `kron`: write `kron(&x, &y)`";
    last() "`Array` has no method `last`: write `x.get(-1)`";
    leaky_relu() "`Array` has no method `leaky_relu`: write `nn::leaky_relu(&x, 0.01)`";
    len() "`Array` has no method `len`: write `x.shape()[0]` for the number of rows, or `x.size()` for the number of elements";
    less_than(other) "`Array` has no method `less_than`: write `x.less(y)`";
    log_softmax(axis) "`Array` has no method `log_softmax`: write `nn::log_softmax(&x, axes)`";
    log_sum_exp(axis) "`Array` has no method `log_sum_exp`: write `x.logsumexp(axis)`";
    logaddexp(other) "`Array` has no method `logaddexp`: write `logaddexp(&x, &y)`";
    logcumsumexp(axis) "`Array` has no method `logcumsumexp`: write `lax::cumlogsumexp(&x, axis)`";
    logical_and(other) "`Array` has no method `logical_and`: write `logical_and(&x, &y)`";
    logical_or(other) "`Array` has no method `logical_or`: write `logical_or(&x, &y)`";
    logical_xor(other) "`Array` has no method `logical_xor`: write `logical_xor(&x, &y)`";
    logit() "`Array` has no method `logit`: write `scipy::special::logit(&x)`";
    long() "`Array` has no method `long`: write `x.astype(DType::I64)`";
    lower(other) "`Array` has no method `lower`: write `x.less(&y)`";
    lower_elem(number) "`Array` has no method `lower_elem`: write `x.less(number)`";
    lstsq(other) "`Array` has no method `lstsq`: write `linalg::lstsq(&x, &y)`";
    map(function) "`Array` has no method `map`: write the operations on the array, such as `x.exp() + 1`; they apply to each element";
    map_inplace(function) "`Array` has no method `map_inplace`: write the operations on the array, such as `x = x.exp() + 1`; they apply to each element";
    mapv(function) "`Array` has no method `mapv`: write the operations on the array, such as `x.exp() + 1`; they apply to each element";
    mapv_inplace(function) "`Array` has no method `mapv_inplace`: write the operations on the array, such as `x = x.exp() + 1`; they apply to each element";
    mapv_into(function) "`Array` has no method `mapv_into`: write the operations on the array, such as `x.exp() + 1`; they apply to each element";
    mask_fill(mask, value) "`Array` has no method `mask_fill`: write `where_(mask, value, &x)`";
    mask_where(mask, values) "`Array` has no method `mask_where`: write `where_(mask, values, &x)`";
    masked_fill(mask, value) "`Array` has no method `masked_fill`: write `where_(mask, value, &x)`";
    masked_select(mask) "`Array` has no method `masked_select`: write `x.get(&mask)`";
    matrix_exp() "`Array` has no method `matrix_exp`: write `scipy::linalg::expm(&x)`";
    matrix_power(exponent) "`Array` has no method `matrix_power`: write `linalg::matrix_power(&x, 2)`";
    max_dim(axis) "`Array` has no method `max_dim`: write `x.max_keepdims(axis)`";
    max_keepdim(axis) "`Array` has no method `max_keepdim`: write `x.max_keepdims(axis)`";
    max_pool(window) "`Array` has no method `max_pool`: write `max_pool(&x, [2, 2], [2, 2])` of `shardax-nn`";
    max_pool2d(window) "`Array` has no method `max_pool2d`: write `max_pool(&x, [2, 2], [2, 2])` of `shardax-nn`";
    mean_all() "`Array` has no method `mean_all`: write `x.mean(..)`";
    mean_axis(axis) "`Array` has no method `mean_axis`: write `x.mean(axis)`";
    mean_dim(axis) "`Array` has no method `mean_dim`: write `x.mean_keepdims(axis)`";
    mean_keepdim(axis) "`Array` has no method `mean_keepdim`: write `x.mean_keepdims(axis)`";
    median(axis) "`Array` has no method `median`: write `median(&x, axis)`";
    min_dim(axis) "`Array` has no method `min_dim`: write `x.min_keepdims(axis)`";
    min_keepdim(axis) "`Array` has no method `min_keepdim`: write `x.min_keepdims(axis)`";
    mm(other) "`Array` has no method `mm`: write `x.matmul(&y)`";
    movedim(source, destination) "`Array` has no method `movedim`: write `x.moveaxis(0, 1)`";
    mul_scalar(number) "`Array` has no method `mul_scalar`: write `x * 2.0`";
    multinomial(count) "`Array` has no method `multinomial`: write `random::categorical(&key, &logits, -1)`, from unnormalized log-probabilities";
    multiply(other) "`Array` has no method `multiply`: write `x * y`";
    mv(vector) "`Array` has no method `mv`: write `x.dot(&v)`";
    nan_to_num() "`Array` has no method `nan_to_num`: write `nan_to_num(&x)`";
    nanmean(axis) "`Array` has no method `nanmean`: write `nanmean(&x, axis)`";
    nansum(axis) "`Array` has no method `nansum`: write `nansum(&x, axis)`";
    narrow(axis, start, length) "`Array` has no method `narrow`: write `x.get((.., start..start + length))`";
    ncols() "`Array` has no method `ncols`: write `x.shape()[1]`";
    new_ones(shape) "`Array` has no method `new_ones`: write `ones(shape)`";
    new_zeros(shape) "`Array` has no method `new_zeros`: write `zeros(shape)`";
    norm() "`Array` has no method `norm`: write `linalg::norm(&x, 2, ..)`";
    nrows() "`Array` has no method `nrows`: write `x.shape()[0]`";
    numel() "`Array` has no method `numel`: write `x.size()`";
    numpy() "`Array` has no method `numpy`: write `x.to_vec::<f32>()?`, or `x.view::<f32>()?` without a copy";
    one_hot(classes) "`Array` has no method `one_hot`: write `nn::one_hot(&x, classes)`";
    ones_like() "`Array` has no method `ones_like`: write `ones_like(&x)`";
    or(other) "`Array` has no method `or`: write `x | y`";
    outer(other) "`Array` has no method `outer`: write `outer(&x, &y)`";
    pad(widths) "`Array` has no method `pad`: write `pad(&x, widths, PadMode::Constant(0.0))`";
    permute(axes) "`Array` has no method `permute`: write `x.transpose([1, 0])`";
    pinverse() "`Array` has no method `pinverse`: write `linalg::pinv(&x)`";
    polygamma(order) "`Array` has no method `polygamma`: write `scipy::special::polygamma(order, &x)`";
    powf(exponent) "`Array` has no method `powf`: write `x.pow(0.5)`";
    powf_scalar(exponent) "`Array` has no method `powf_scalar`: write `x.pow(0.5)`";
    powi(exponent) "`Array` has no method `powi`: write `x.pow(2)`";
    powi_scalar(exponent) "`Array` has no method `powi_scalar`: write `x.pow(2)`";
    print() "`Array` has no method `print`: write `println!(\"{{x}}\")`, or `debug::print` in a traced function";
    qr() "`Array` has no method `qr`: write `linalg::qr(&x)`";
    quantile(q, axis) "`Array` has no method `quantile`: write `quantile(&x, q, axis)`";
    rank() "`Array` has no method `rank`: write `x.ndim()`";
    recip() "`Array` has no method `recip`: write `x.reciprocal()`";
    relu() "`Array` has no method `relu`: write `nn::relu(&x)`";
    remainder(other) "`Array` has no method `remainder`: write `x % y`";
    remove_axis(axis) "`Array` has no method `remove_axis`: write `x.squeeze(axis)`, or `x.get(0)`";
    repeat_dim(axis, count) "`Array` has no method `repeat_dim`: write `tile(&x, [1, 2])`, with a count for each axis";
    repeat_interleave(count) "`Array` has no method `repeat_interleave`: write `x.repeat(count, axis)`";
    require_grad() "`Array` has no method `require_grad`: write the loss as a function and differentiate it: `grad(loss).call(w)?`";
    requires_grad() "`Array` has no method `requires_grad`: write the loss as a function and differentiate it: `grad(loss).call(w)?`";
    reshape_as(other) "`Array` has no method `reshape_as`: write `x.reshape(y.shape())`";
    rot90() "`Array` has no method `rot90`: write `rot90(&x, 1, (0, 1))`";
    row(index) "`Array` has no method `row`: write `x.get(i)`";
    scatter(axis, indices, values) "`Array` has no method `scatter`: write `x.at(&indices).set(&values)`";
    scatter_add(axis, indices, values) "`Array` has no method `scatter_add`: write `x.at(&indices).add(&values)`";
    select(axis, index) "`Array` has no method `select`: write `x.get(i)`, or `x.get((.., i))` for another axis";
    set(index, value) "`Array` has no method `set`: write `x.at(i).set(value)`, which returns a new array";
    sgn() "`Array` has no method `sgn`: write `x.sign()`";
    sigmoid() "`Array` has no method `sigmoid`: write `nn::sigmoid(&x)`";
    silu() "`Array` has no method `silu`: write `nn::silu(&x)`";
    slice(ranges) "`Array` has no method `slice`: write `x.get((.., 1..3))`, or `x.get(s![..; 2])` for steps";
    slice_assign(ranges, values) "`Array` has no method `slice_assign`: write `x.at((0..2, ..)).set(&values)`";
    slogdet() "`Array` has no method `slogdet`: write `linalg::slogdet(&x)`";
    softmax(axis) "`Array` has no method `softmax`: write `nn::softmax(&x, axes)`";
    solve(other) "`Array` has no method `solve`: write `linalg::solve(&x, &y)`";
    sqr() "`Array` has no method `sqr`: write `x.square()`";
    stack(others) "`Array` has no method `stack`: write `stack([&x, &y], axis)`";
    std_axis(axis, ddof) "`Array` has no method `std_axis`: write `x.std_ddof(axis, 1)`";
    stop_gradient() "`Array` has no method `stop_gradient`: write `stop_gradient(x)`";
    sub_scalar(number) "`Array` has no method `sub_scalar`: write `x - 1.0`";
    subtract(other) "`Array` has no method `subtract`: write `x - y`";
    sum_all() "`Array` has no method `sum_all`: write `x.sum(..)`";
    sum_axis(axis) "`Array` has no method `sum_axis`: write `x.sum(axis)`";
    sum_dim(axis) "`Array` has no method `sum_dim`: write `x.sum_keepdims(axis)`";
    sum_keepdim(axis) "`Array` has no method `sum_keepdim`: write `x.sum_keepdims(axis)`";
    svd() "`Array` has no method `svd`: write `linalg::svd(&x)`";
    swap_dims(first, second) "`Array` has no method `swap_dims`: write `x.swapaxes(0, 1)`";
    swapdims(first, second) "`Array` has no method `swapdims`: write `x.swapaxes(0, 1)`";
    take_along_dim(indices, axis) "`Array` has no method `take_along_dim`: write `x.take_along_axis(&indices, axis)`";
    tile(counts) "`Array` has no method `tile`: write `tile(&x, [2, 1])`, with a count for each axis";
    to(target) "`Array` has no method `to`: write `x.astype(DType::Bf16)` for a dtype, or `device_put(&x, &devices()?[0])?` for a device";
    to_data() "`Array` has no method `to_data`: write `x.to_vec::<f32>()?`";
    to_device(device) "`Array` has no method `to_device`: write `device_put(&x, &devices()?[0])?`";
    to_dtype(dtype) "`Array` has no method `to_dtype`: write `x.astype(DType::F32)`";
    to_f32() "`Array` has no method `to_f32`: write `x.item::<f32>()?`";
    to_scalar() "`Array` has no method `to_scalar`: write `x.item::<f32>()?`";
    to_vec0() "`Array` has no method `to_vec0`: write `x.item::<f32>()?`";
    to_vec1() "`Array` has no method `to_vec1`: write `x.to_vec::<f32>()?`";
    to_vec2() "`Array` has no method `to_vec2`: write `x.to_vec::<f32>()?`, whose rows are `chunks(x.shape()[1])`";
    to_vec3() "`Array` has no method `to_vec3`: write `x.to_vec::<f32>()?`, the elements in row-major order";
    tobytes() "`Array` has no method `tobytes`: write `x.to_bytes()?`";
    tolist() "`Array` has no method `tolist`: write `x.to_vec::<f32>()?`";
    topk(count) "`Array` has no method `topk`: write `lax::top_k(&x, k)`, which returns values and indices of the last axis";
    true_divide(other) "`Array` has no method `true_divide`: write `x / y`";
    type_as(other) "`Array` has no method `type_as`: write `x.astype(y.dtype())`";
    unbind() "`Array` has no method `unbind`: write `for row in &x`, or `x.unstack::<3>()?` for a known number of rows";
    unique() "`Array` has no method `unique`: write `unique(&x, size)`, or `unique(&x, None)` outside `jit`";
    unsqueeze(axis) "`Array` has no method `unsqueeze`: write `x.expand_dims(axis)`";
    unsqueeze_dim(axis) "`Array` has no method `unsqueeze_dim`: write `x.expand_dims(axis)`";
    unwrap() "`Array` has no method `unwrap`: an operation returns an array, not a `Result`; `x.check()?` returns its error here";
    var_axis(axis, ddof) "`Array` has no method `var_axis`: write `x.var_ddof(axis, 1)`";
    vdot(other) "`Array` has no method `vdot`: write `vdot(&x, &y)`";
    view_as(other) "`Array` has no method `view_as`: write `x.reshape(y.shape())`";
    where_cond(first, second) "`Array` has no method `where_cond`: write `where_(&x, first, second)`";
    xor(other) "`Array` has no method `xor`: write `x ^ y`";
    zero_grad() "`Array` has no method `zero_grad`: gradients are values that `grad(loss).call(w)?` returns, and no array keeps one";
    zeros_like() "`Array` has no method `zeros_like`: write `zeros_like(&x)`";
}
