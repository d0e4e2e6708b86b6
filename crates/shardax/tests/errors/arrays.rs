//! Mistakes with arrays: making, combining, reshaping, reducing, indexing and reading them, and trees of them.

use shardax::ErrorKind::{Index, Runtime, Type, Value};
use shardax::lax::Padding;
use shardax::prelude::*;
use shardax::{IndexItem, lax, nn};

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    creation(t);
    elementwise(t);
    shapes(t);
    reductions(t);
    products(t);
    joins(t);
    indexing(t);
    reads(t);
    trees(t);
    windows(t);
    contractions(t);
    parts(t);
    choices(t);
}

fn creation(t: &mut Table) {
    t.row("array: ragged rows", Value, &["rows of different lengths"], || at!(array(vec![vec![1, 2], vec![3]])));
    t.row("from_slice: count", Value, &["[2, 3] has 6 elements", "but 5 were given"], || {
        at!(Array::from_slice(&[1.0f32; 5], &[2, 3]))
    });
    t.row("from_vec: count", Value, &["[2] has 2 elements"], || at!(Array::from_vec(vec![1i32; 3], &[2])));
    t.row("from_bytes: count", Value, &["float32[2]", "8 bytes", "but got 7"], || {
        at!(Array::from_bytes(&[0; 7], DType::F32, &[2]))
    });
    t.row("zeros: negative size", Value, &["negative sizes", "-2"], || at!(zeros([3, -2])));
    t.row("ones: more than 63 bits", Value, &["too large"], || at!(ones([usize::MAX / 2, 4])));
    t.row("zeros: more than 63 bits hidden by a 0", Value, &["too large"], || at!(zeros([usize::MAX / 2, 4, 0])));
    t.row("zeros: more than memory", Runtime, &["no memory", "float32[1152921504606846976]"], || {
        at!(zeros(1i64 << 60))
    })
    .at_once_only();
    t.row("arange: step 0", Value, &["step that is not 0", "got 0"], || at!(arange_step(0..5, 0.0)));
    t.row("arange: NaN", Value, &["cannot convert float NaN to integer"], || at!(arange(0.0f32..f32::NAN)));
    t.row("arange: without end", Value, &["too large"], || at!(arange(0.0f32..f32::INFINITY)));
    t.row("eye: more than 63 bits", Value, &["too large"], || at!(eye(1 << 40)));
    t.row("linspace: more than 63 bits", Value, &["too large"], || at!(linspace(0.0, 1.0, usize::MAX)));
}

fn elementwise(t: &mut Table) {
    // Each row is a call that must fail, with the words that its message must have: the values and the fix.
    t.row("add: shapes", Value, &["add got incompatible shapes for broadcasting", "float32[3]", "float32[4]"], || {
        at!(ones(3) + ones(4))
    });
    t.row("multiply: inner sizes", Value, &["mul got incompatible shapes", "[2,3]", "[2,4]"], || {
        at!(ones([2, 3]) * ones([2, 4]))
    });
    t.row("add-assign: shapes", Value, &["incompatible shapes"], || {
        let mut x = ones(3);
        at!(x += ones(4));
        x
    });
    t.row("less: shapes", Value, &["less got incompatible shapes"], || at!(ones(3).less(ones(4))));
    t.row("where: shapes", Value, &["where got incompatible shapes"], || at!(where_(array([true; 3]), ones(4), 0)));
    t.row("maximum: shapes", Value, &["max got incompatible shapes"], || at!(maximum(ones(3), ones(4))));
    t.row("arctan2: shapes", Value, &["atan2 got incompatible shapes"], || at!(arctan2(ones(3), ones(4))));
    t.row("clip: shapes", Value, &["incompatible shapes"], || at!(clip(&ones(3), ones(4), 9)));
    t.row("allclose: shapes", Value, &["incompatible shapes"], || at!(allclose(ones(3), ones(4), 0.0, 0.0)))
        .at_once_only();
    t.row("subtract: booleans", Type, &["sub does not accept dtype bool"], || at!(array([true]) - array([false])));
    t.row("negative: booleans", Type, &["neg does not accept dtype bool"], || at!(-array([true])));
    t.row("and: floats", Type, &["and does not accept dtype float32", "integers and booleans"], || {
        at!(ones(2) & ones(2))
    });
    t.row("not: floats", Type, &["not does not accept dtype float32"], || at!(!ones(2)));
    t.row("shift: floats", Type, &["shift_left does not accept dtype float32"], || at!(ones(2) << 1));
    t.row("remainder: complex", Type, &["remainder does not support complex-valued inputs"], || {
        at!(complex(1.0, 2.0) % 2)
    });
    t.row("less: complex", Type, &["lt does not accept dtype complex64"], || at!(complex(ones(2), 0.0).less(1)));
    t.row("floor: complex", Type, &["floor does not accept dtype complex64"], || at!(complex(ones(2), 0.0).floor()));
    t.row("population_count: floats", Type, &["population_count does not accept dtype float32"], || {
        at!(ones(2).population_count())
    });
    t.row("power: integer to a negative", Type, &["Integers cannot be raised to negative powers"], || {
        at!(array([2, 3]).pow(-1))
    });
    t.row("add: number beyond int8", Value, &["integer 300 is out of bounds for int8"], || at!(array([1i8]) + 300));
    t.row("compare: negative with unsigned", Value, &["integer -1 is out of bounds for uint8"], || {
        at!(array([1u8]).equal(-1))
    });
    t.row("number beyond int32", Value, &["integer 1099511627776 is out of bounds for int32"], || {
        at!(Array::from(1i64 << 40).to_vec::<i32>())
    })
    .at_once_only();
    t.row("astype: float0", Type, &["cannot be converted to float0", "int32[2]"], || {
        at!(array([1, 2]).astype(DType::Float0))
    });
    t.row("the first error is kept", Value, &["float32[3]", "float32[4]"], || {
        let bad = at!(ones(3) + ones(4));
        let another_error = ones(5) * ones(6);
        (bad * another_error).sum(0).reshape([7, 7])
    });
}

fn shapes(t: &mut Table) {
    // The message names the sizes that do not fit together.
    t.row("reshape: size", Type, &["cannot reshape array of shape (6,) (size 6) into shape (4,2) (size 8)"], || {
        at!(arange(0..6).reshape([4, 2]))
    });
    t.row("reshape: two unknowns", Type, &["cannot reshape", "[-1, -1]"], || at!(arange(0..6).reshape([-1, -1])));
    t.row("reshape: -1 does not divide", Type, &["cannot reshape", "(size 6)"], || at!(arange(0..6).reshape([4, -1])));
    t.row("reshape: negative", Type, &["cannot reshape", "[-2, 3]"], || at!(arange(0..6).reshape([-2, 3])));
    t.row("reshape: overflow", Type, &["cannot reshape"], || at!(arange(0..6).reshape([usize::MAX / 2, 4])));
    t.row("reshape: overflow beside -1", Type, &["cannot reshape"], || {
        at!(arange(0..6).reshape([i64::MAX, i64::MAX, -1]))
    });
    t.row("transpose: too few", Type, &["isn't a permutation", "(0,)", "float32[2,3]"], || {
        at!(ones([2, 3]).transpose(&[0]))
    });
    t.row("transpose: repeated", Type, &["isn't a permutation"], || at!(ones([2, 3]).transpose(&[0, 0])));
    t.row("transpose: axis", Index, &["axis 2 is out of bounds for an array of rank 2"], || {
        at!(ones([2, 3]).transpose(&[0, 2]))
    });
    t.row("swapaxes: axis", Index, &["axis -3 is out of bounds"], || at!(ones([2, 3]).swapaxes(0, -3)));
    t.row("mt: vector", Index, &["axis -2 is out of bounds"], || at!(ones(3).mt()));
    t.row("moveaxis: axis", Index, &["axis 5 is out of bounds"], || at!(ones([2, 3]).moveaxis(5, 0)));
    t.row("expand_dims: axis", Index, &["axis 4 is out of bounds"], || at!(ones([2, 3]).expand_dims(4)));
    t.row(
        "squeeze: size",
        Value,
        &["cannot select an axis to squeeze out which has size not equal to one", "[2, 3]"],
        || at!(ones([2, 3]).squeeze(1)),
    );
    t.row("squeeze: scalar", Index, &["axis 0 is out of bounds for an array of rank 0"], || at!(zeros(()).squeeze(0)));
    t.row("flatten_from: axis", Index, &["axis 4 is out of bounds"], || at!(ones([2, 3]).flatten_from(4)));
    t.row("broadcast_to: sizes", Value, &["Incompatible shapes for broadcasting", "[3]", "[2, 4]"], || {
        at!(ones(3).broadcast_to([2, 4]))
    });
    t.row("broadcast_to: fewer dimensions", Value, &["Incompatible shapes for broadcasting"], || {
        at!(ones([2, 3]).broadcast_to(3))
    });
    t.row("broadcast_to: negative", Value, &["Incompatible shapes for broadcasting", "-1"], || {
        at!(ones(3).broadcast_to([-1, 3]))
    });
    t.row("broadcast_to: more than 63 bits", Value, &["too large"], || at!(ones(()).broadcast_to([i64::MAX, 4])));
    t.row("full_like: sizes", Value, &["Incompatible shapes for broadcasting"], || at!(full_like(&ones(3), ones(4))));
    t.row("split: parts", Value, &["does not result in an equal division", "size 7 into 2 parts"], || {
        at!(arange(0..7).split(2, 0))
    });
    t.row("split: none", Value, &["does not result in an equal division"], || at!(arange(0..7).split(0, 0)));
    t.row("split: axis", Index, &["axis 1 is out of bounds"], || at!(arange(0..7).split(7, 1)));
    t.row("pad: too few", Type, &["pad of float32[2,3]", "1 padding entries"], || {
        at!(lax::pad(&ones([2, 3]), 0.0f32, &[(1, 1, 0)]))
    });
    t.row("pad: cuts too much", Value, &["gives -1"], || at!(lax::pad(&ones(3), 0.0f32, &[(-2, -2, 0)])));
    t.row("pad: overflow", Value, &["pad"], || at!(lax::pad(&ones(3), 0.0f32, &[(i64::MAX, i64::MAX, i64::MAX)])));
    t.row("flip: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).flip(1)));
    t.row("roll: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).roll(1, 1)));
}

fn reductions(t: &mut Table) {
    // An axis is reported as the caller wrote it, also if it counts from the end.
    t.row("sum: axis", Index, &["axis 2 is out of bounds for an array of rank 2"], || at!(ones([2, 3]).sum(2)));
    t.row("sum: axis of a scalar", Index, &["axis 0 is out of bounds", "rank 0"], || at!(zeros(()).sum(0)));
    t.row("sum: one axis twice", Value, &["name one axis twice", "[0, -2]"], || at!(ones([2, 3]).sum([0, -2])));
    t.row("mean: axis", Index, &["axis -3 is out of bounds"], || at!(ones([2, 3]).mean(-3)));
    t.row("var: axis", Index, &["axis 7 is out of bounds"], || at!(ones([2, 3]).var(7)));
    t.row("std: axis", Index, &["axis 7 is out of bounds"], || at!(ones([2, 3]).std(7)));
    t.row(
        "max: of nothing",
        Value,
        &["zero-size array to reduction operation max which has no identity", "[0,3]"],
        || at!(zeros([0, 3]).max(0)),
    );
    t.row("min: of nothing", Value, &["zero-size array to reduction operation min"], || at!(zeros([3, 0]).min(..)));
    t.row("argmax: of nothing", Value, &["argmax", "empty"], || at!(zeros([3, 0]).argmax(1)));
    t.row("argmin: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).argmin(1)));
    t.row("logsumexp: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).logsumexp(1)));
    t.row("cumsum: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).cumsum(1)));
    t.row("sort: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).sort(1)));
    t.row("argsort: scalar", Index, &["axis -1 is out of bounds"], || at!(zeros(()).argsort(-1)));
    t.row("lax::sort: shapes", Type, &["sort needs arrays of one shape", "[3]", "[4]"], || {
        at!(lax::sort(&[ones(3), ones(4)], 0, 1))
    });
    t.row("lax::sort: keys", Value, &["cannot have 2 keys"], || at!(lax::sort(&[ones(3)], 0, 2)));
    t.row("top_k: k", Value, &["k=4 must be no larger"], || at!(lax::top_k(&ones(3), 4)).0);
    t.row("searchsorted: rank", Value, &["searchsorted needs a sorted array of one dimension", "[2,3]"], || {
        at!(ones([2, 3]).searchsorted(1.0))
    });
    t.row("softmax: axis", Index, &["axis 1 is out of bounds"], || at!(nn::softmax(ones(3), 1)));
}

fn products(t: &mut Table) {
    // Both operand types are in the message.
    t.row("dot: vectors", Type, &["dot requires contracting dimensions to have equal shapes", "got 3 and 4"], || {
        at!(ones(3).dot(ones(4)))
    });
    t.row("dot: matrix and vector", Type, &["got 3 and 2", "float32[2,3]", "float32[2]"], || {
        at!(ones([2, 3]).dot(ones(2)))
    });
    t.row("matmul: inner", Type, &["matmul requires contracting dimensions", "got 3 and 2"], || {
        at!(ones([2, 3]).matmul(ones([2, 3])))
    });
    t.row(
        "matmul: scalar",
        Value,
        &["matmul needs arrays of at least one dimension"],
        || at!(ones([2, 3]).matmul(2.0)),
    );
    t.row("matmul: batches", Value, &["incompatible shapes for broadcasting", "[2,3,4]", "[5,4,3]"], || {
        at!(ones([2, 3, 4]).matmul(ones([5, 4, 3])))
    });
    t.row("dot_general: dimension", Index, &["out of range", "float32[2]"], || {
        at!(lax::dot_general(&ones(2), &ones(2), (&[1], &[0]), (&[], &[]), None))
    });
    t.row("dot_general: batch sizes", Type, &["batch dimensions to have equal shapes", "[2]", "[3]"], || {
        at!(lax::dot_general(&ones([2, 4]), &ones([3, 4]), (&[1], &[1]), (&[0], &[0]), None))
    });
    t.row("dot_general: one dimension twice", Value, &["dot_general", "distinct"], || {
        at!(lax::dot_general(&ones([2, 2]), &ones([2, 2]), (&[0, 0], &[0, 1]), (&[], &[]), None))
    });
}

fn joins(t: &mut Table) {
    t.row("concatenate: nothing", Value, &["Need at least one array to concatenate"], || {
        at!(concatenate(&[] as &[Array], 0))
    });
    t.row("concatenate: ranks", Type, &["concatenate", "float32[2]", "float32[2,2]"], || {
        at!(concatenate(&[ones(2), ones([2, 2])], 0))
    });
    t.row("concatenate: sizes", Type, &["concatenate", "float32[2,3]", "float32[2,4]"], || {
        at!(concatenate(&[ones([2, 3]), ones([2, 4])], 0))
    });
    t.row("concatenate: axis", Index, &["axis 1 is out of bounds"], || at!(concatenate(&[ones(2), ones(2)], 1)));
    t.row("concatenate: scalars", Value, &["Zero-dimensional arrays cannot be concatenated"], || {
        at!(concatenate(&[Array::from(1.0f32), 2.0f32.into()], 0))
    });
    t.row("stack: shapes", Value, &["All input arrays must have the same shape", "[2]", "[3]"], || {
        at!(stack(&[ones(2), ones(3)], 0))
    });
    t.row("stack: axis", Index, &["axis 3 is out of bounds"], || at!(stack(&[ones(2), ones(2)], 3)));
}

fn indexing(t: &mut Table) {
    // Positions known on the host are checked at the call, and other positions never.
    t.row("get: number", Index, &["index 3 is out of bounds for axis 0 with size 3"], || at!(arange(0..3).get(3)));
    t.row("get: negative number", Index, &["index -4 is out of bounds"], || at!(arange(0..3).get(-4)));
    t.row("get: of nothing", Index, &["index 0 is out of bounds for axis 0 with size 0"], || at!(zeros(0).get(0)));
    t.row("get: too many", Index, &["too many indices for array: array is 1-dimensional, but 2 were indexed"], || {
        at!(arange(0..3).get((0, 0)))
    });
    t.row("get: two ellipses", Index, &["an index can only have a single Ellipsis"], || {
        at!(arange(0..3).get((Ellipsis, Ellipsis)))
    });
    t.row("get: step 0", Value, &["slice step cannot be zero"], || at!(arange(0..3).get(s![..;0])));
    t.row("get: floats", Type, &["Indexer must have integer or boolean type", "float32[2]"], || {
        at!(arange(0..3).get(&ones(2)))
    });
    t.row("get: mask", Index, &["boolean index did not match", "sizes [3], and the mask [2]"], || {
        at!(arange(0..3).get(array([true, false])))
    });
    t.row("get: index shapes", Index, &["indexing arrays could not be broadcast together"], || {
        at!(ones([3, 3]).get((&arange(0..2), &arange(0..3))))
    });
    t.row("get: from a list of items", Index, &["index 9 is out of bounds"], || {
        at!(arange(0..3).get(vec![IndexItem::At(9)]))
    });
    t.row("at.set: shape", Value, &["Incompatible shapes for broadcasting", "[2]", "[3]"], || {
        at!(zeros(3).at(..).set(ones(2)))
    });
    t.row("at.set: float into integers", Type, &["cannot safely cast value"], || at!(arange(0..3).at(0).set(1.5f32)));
    t.row("at.add: number", Index, &["index 3 is out of bounds"], || at!(zeros(3).at(3).add(1.0)));
    t.row("take: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).take([0], 1)));
    t.row("take_along_axis: ranks", Value, &["same number of dimensions"], || {
        at!(ones([2, 3]).take_along_axis(&array([0]), 1))
    });
    t.row("take_along_axis: floats", Type, &["must be of integer type"], || at!(ones(3).take_along_axis(&ones(1), 0)));
    t.row("dynamic_slice: starts", Type, &["dynamic_slice", "got 1"], || {
        at!(lax::dynamic_slice(&ones([2, 3]), &[0.into()], &[1, 1]))
    });
    t.row("dynamic_slice: sizes", Type, &["larger than the operand", "[3, 1]"], || {
        at!(lax::dynamic_slice(&ones([2, 3]), &[0.into(), 0.into()], &[3, 1]))
    });
    t.row("dynamic_slice: float start", Type, &["start indices must be integer scalars"], || {
        at!(lax::dynamic_slice(&ones(3), &[0.5f32.into()], &[1]))
    });
    t.row("dynamic_update_slice: dtype", Type, &["must have the dtype of the operand"], || {
        at!(lax::dynamic_update_slice(&ones(3), &arange(0..1), &[0.into()]))
    });
    t.row("slice_in_dim: bounds", Index, &["out of bounds", "1..4"], || at!(lax::slice_in_dim(&ones(3), 1, 4, 0)));
    t.row("slice_in_dim: axis", Index, &["out of bounds"], || at!(lax::slice_in_dim(&ones(3), 0, 1, 1)));
    t.row("iter: scalar", Type, &["iteration over a 0-d array"], || at!(zeros(()).iter()).next().expect("one entry"));
}

fn reads(t: &mut Table) {
    // Reading is strict: it converts neither the type nor the shape.
    t.row("to_vec: dtype", Type, &["int32[2] cannot be read as float32", "astype"], || {
        at!(array([1, 2]).to_vec::<f32>())
    })
    .at_once_only();
    t.row(
        "item: many",
        Value,
        &["item needs an array of one element", "int32[2]"],
        || at!(array([1, 2]).item::<i32>()),
    )
    .at_once_only();
    t.row("to_vec: usize of numbers", Type, &["float32[2] cannot be read as usize", "read it as float32"], || {
        at!(ones(2).to_vec::<usize>())
    })
    .at_once_only();
    t.row("to_vec: usize of a negative number", Value, &["int32[2] has the element -1", "read it as int32"], || {
        at!(array([3, -1]).to_vec::<usize>())
    })
    .at_once_only();
    t.row("item: none", Value, &["item needs an array of one element", "float32[0]"], || at!(zeros(0).item::<f32>()))
        .at_once_only();
    t.row("to_f64: many", Value, &["to_f64 needs an array of one element"], || at!(array([1, 2]).to_f64()))
        .at_once_only();
    t.row("read: what failed before", Value, &["incompatible shapes"], || {
        let bad = at!(ones(3) + ones(4));
        bad.to_vec::<f32>()
    });
    t.row("read: while traced", Type, &["is not known while its function is traced", "int32[]"], || {
        jit(|x: Array| -> Result<Array> { Ok(x.clone() * at!(x.get(0).sum(..).item::<i32>())?) })
            .call(array([[1, 2], [3, 4]]))
    });
    t.row("sharding: while traced", Type, &["is not known while its function is traced"], || {
        jit(|x: Array| -> Result<Array> {
            at!(x.sharding())?;
            Ok(x)
        })
        .call(array([1, 2]))
    })
    .at_once_only();
    t.row("addressable_data: index", Index, &["shard 1 is out of range", "1 addressable shards"], || {
        at!(arange(0..3).addressable_data(1))
    })
    .at_once_only();
}

#[derive(Tree, Clone)]
struct Params {
    w: Vec<Array>,
    b: Option<Array>,
}

fn params(layers: usize, b: Option<Array>) -> Params {
    Params { w: vec![ones(2); layers], b }
}

fn trees(t: &mut Table) {
    // The message names the first part in which the trees differ.
    t.row("map2: lengths", Type, &["trees of different structure", "`.w`", "a list of 1", "a list of 2"], || {
        at!(tree::map2(|a, b| a + b, params(1, None), params(2, None)))
    });
    t.row("map2: option", Type, &["trees of different structure", "`.b`", "None"], || {
        at!(tree::map2(|a, b| a + b, params(1, None), params(1, Some(ones(1)))))
    });
    t.row("map3: lengths", Type, &["trees of different structure"], || {
        at!(tree::map3(|a, b, _| a + b, params(1, None), params(1, None), params(2, None)))
    });
    t.row("map2: leaves", Value, &["add got incompatible shapes"], || {
        let sum = tree::map2(|a, b| at!(a + b), (ones(2),), (ones(3),));
        sum.and_then(|(x,)| x.check())
    });
    t.row("unflatten: too few leaves", Type, &["tree structure mismatch", "expected an array"], || {
        let def = tree::structure(&params(2, None));
        at!(tree::unflatten::<Params>(&def, &[ones(2)]))
    });
    t.row("unflatten: too many leaves", Type, &["tree structure mismatch", "more"], || {
        let def = tree::structure(&params(1, None));
        at!(tree::unflatten::<Params>(&def, &[ones(2), ones(2)]))
    });
    t.row("unflatten: type", Type, &["tree structure mismatch"], || {
        let def = tree::structure(&(ones(2), ones(2)));
        at!(tree::unflatten::<Vec<Array>>(&def, &[ones(2), ones(2)]))
    });
}

fn windows(t: &mut Table) {
    t.row("conv: channels", Value, &["conv"], || {
        at!(nn::conv(ones([1, 8, 8, 3]), ones([3, 3, 4, 5]), [1, 1], Padding::Same))
    });
    t.row("conv: ranks", Value, &["conv", "one rank"], || {
        at!(nn::conv(ones([8, 8, 3]), ones([3, 3, 3, 5]), [1, 1], Padding::Same))
    });
    t.row("conv: stride 0", Value, &["conv", "stride"], || {
        at!(nn::conv(ones([1, 8, 8, 3]), ones([3, 3, 3, 5]), [0, 1], Padding::Same))
    });
    t.row("conv: padding", Value, &["1 pairs of padding"], || {
        at!(nn::conv(ones([1, 8, 8, 3]), ones([3, 3, 3, 5]), [1, 1], [(1, 1)]))
    });
    t.row("max_pool: window", Value, &["window"], || at!(nn::max_pool(ones([1, 8, 8, 3]), [2, 2, 2, 2, 2], [2, 2])));
    t.row("max_pool: stride 0", Value, &["stride"], || at!(nn::max_pool(ones([1, 8, 8, 3]), [2, 2], [0, 2])));
    t.row("max_pool: window 0", Value, &["window"], || at!(nn::max_pool(ones([1, 8, 8, 3]), [0, 2], [2, 2])));
}

fn contractions(t: &mut Table) {
    // The message contains the subscripts.
    t.row("einsum: operands", Value, &["einsum(\"ij,jk->ik\")", "2 arrays", "1 were given"], || {
        at!(einsum("ij,jk->ik", &[&ones([2, 3])]))
    });
    t.row("einsum: none", Value, &["einsum"], || at!(einsum("->", [] as [Array; 0])));
    t.row("einsum: rank", Value, &["\"ij\" has 2 letters", "3 dimensions"], || {
        at!(einsum("ij->i", &[&ones([2, 3, 4])]))
    });
    t.row("einsum: sizes", Value, &["'j' has sizes", "float32[2,3]", "float32[4,5]"], || {
        at!(einsum("ij,jk->ik", &[&ones([2, 3]), &ones([4, 5])]))
    });
    t.row("einsum: diagonal of unequal sizes", Value, &["'i' has sizes 3 and 2"], || {
        at!(einsum("ii->i", &[&ones([2, 3])]))
    });
    t.row("einsum: unknown letter", Value, &["the result has 'z'"], || at!(einsum("ij->iz", &[&ones([2, 3])])));
    t.row("einsum: letter twice", Value, &["the result has 'i' twice"], || at!(einsum("ij->ii", &[&ones([2, 3])])));
    t.row("einsum: no letter", Value, &["'1' is not a letter"], || at!(einsum("i1->i", &[&ones([2, 3])])));
    t.row("einsum: lost ellipsis", Value, &["ellipsis"], || at!(einsum("...i->i", &[&ones([2, 3])])));
    t.row("tensordot: too many", Type, &["3 dimensions"], || at!(tensordot(ones([2, 3]), ones([2, 3]), 3)));
    t.row("tensordot: axis", Index, &["axis 5 is out of bounds"], || {
        at!(tensordot(ones([2, 3]), ones([2, 3]), ([5], [0])))
    });
    t.row("tensordot: sizes", Type, &["contracting dimensions"], || at!(tensordot(ones([2, 3]), ones([2, 3]), 1)));
    t.row("inner: sizes", Type, &["inner", "3 and 4"], || at!(inner(ones([2, 3]), ones([2, 4]))));
    t.row("vdot: sizes", Type, &["3 and 4"], || at!(vdot(ones(3), ones(4))));
}

fn parts(t: &mut Table) {
    // Functions that cut, pad and repeat.
    fn x() -> Array {
        ones([2, 3])
    }
    t.row("pad: pairs", Value, &["2 pairs of widths", "got 3"], move || {
        at!(pad(&x(), &[(1, 1), (1, 1), (1, 1)], PadMode::Edge))
    });
    t.row("pad: empty", Value, &["empty dimension 0"], || at!(pad(&ones([0, 3]), &[(1, 1), (0, 0)], PadMode::Wrap)));
    t.row("pad: too wide", Value, &["too large"], move || at!(pad(&x(), &[(usize::MAX, 1), (0, 0)], PadMode::Reflect)));
    t.row("pad: too wide with a constant", Value, &["too large"], move || {
        at!(pad(&x(), &[(usize::MAX, 1), (0, 0)], PadMode::Constant(0.0)))
    });
    t.row("lax::pad: too wide", Value, &["too large"], move || {
        at!(lax::pad(&x(), &array(0.0f32), &[(i64::MAX, i64::MAX, 0), (0, 0, 0)]))
    });
    t.row("lax::pad: below nothing", Value, &["must not be negative"], move || {
        at!(lax::pad(&x(), &array(0.0f32), &[(-2, -2, 0), (0, 0, 0)]))
    });
    t.row("tile: too large", Value, &["too large"], move || at!(tile(&x(), &[usize::MAX, 2])));
    t.row("repeat: too large", Value, &["too large"], move || at!(repeat(&x(), usize::MAX, 0)));
    t.row("repeat: axis", Index, &["axis 2 is out of bounds"], move || at!(repeat(&x(), 2, 2)));
    t.row("diag: rank", Value, &["must be 1d or 2d", "[2,3,4]"], || at!(diag(&ones([2, 3, 4]), 0)));
    t.row("diag: far", Value, &["too large"], || at!(diag(&ones(3), i32::MIN)));
    t.row("diagonal: axes", Value, &["cannot be the same"], move || at!(x().diagonal(0, 0, -2)));
    t.row("diagonal: axis", Index, &["axis 2 is out of bounds"], move || at!(x().diagonal(0, 0, 2)));
    t.row("trace: rank", Index, &["out of bounds for an array of rank 1"], || at!(ones(3).trace()));
    t.row("tril: rank", Value, &["at least two dimensions"], || at!(ones(3).tril(0)));
    t.row("split_at: axis", Index, &["axis 2 is out of bounds"], move || at!(x().split_at(&[1], 2)));
    t.row("squeeze: one of several", Value, &["not equal to one"], || at!(ones([1, 2]).squeeze([0, 1])));
    t.row("expand_dims: twice", Value, &["name one axis twice"], move || at!(x().expand_dims([0, 0])));
    t.row("lax::slice: bounds", Index, &["out of bounds", "size 3"], move || {
        at!(lax::slice(&x(), &[0, 1], &[2, 4], None))
    });
    t.row("lax::slice: rank", Type, &["needs 2 bounds"], move || at!(lax::slice(&x(), &[0], &[2], None)));
    t.row("lax::slice_in_dim: dimension", Index, &["dimension 2 is out of bounds"], move || {
        at!(lax::slice_in_dim(&x(), 0, 1, 2))
    });
    t.row("lax::rev: twice", Value, &["dimension 0 comes twice"], move || at!(lax::rev(&x(), &[0, 0])));
    t.row("lax::rev: dimension", Index, &["dimension 2 is out of bounds", "float32[2,3]"], move || {
        at!(lax::rev(&x(), &[2]))
    });
    t.row("lax::broadcast_in_dim: sizes", Type, &["cannot repeat", "float32[2,3]"], move || {
        at!(lax::broadcast_in_dim(&x(), &[2, 4], &[0, 1]))
    });
    t.row("lax::concatenate: dimension", Index, &["dimension 2 is out of bounds"], move || {
        at!(lax::concatenate(&[x(), x()], 2))
    });
    t.row("lax::concatenate: none", Value, &["at least one array"], || at!(lax::concatenate(&[], 0)));
    t.row("lax::broadcasted_iota: dimension", Type, &["along dimension 1"], || {
        at!(lax::broadcasted_iota(DType::I32, [3], 1))
    });
    t.row("lax::broadcasted_iota: size", Value, &["negative sizes"], || {
        at!(lax::broadcasted_iota(DType::I32, [-3], 0))
    });
    t.row("lax::broadcasted_iota: dtype", Type, &["bool"], || at!(lax::broadcasted_iota(DType::Bool, [3], 0)));
}

fn choices(t: &mut Table) {
    // Functions that choose elements by a predicate or by ranges.
    t.row("lax::select: predicate", Type, &["boolean predicate", "int32[3]"], || {
        at!(lax::select(&arange(0..3), &ones(3), &ones(3)))
    });
    t.row("lax::select: shapes", Type, &["different shapes"], || {
        at!(lax::select(&array([true; 3]), &ones(3), &ones(4)))
    });
    t.row("lax::select_n: cases", Type, &["at least one case"], || at!(lax::select_n(&array(true), &[])));
    t.row("lax::select_n: booleans", Type, &["at most 2 cases"], || {
        at!(lax::select_n(&array(true), &[ones(3), ones(3), ones(3)]))
    });
    t.row("lax::select_n: dtype", Type, &["boolean", "float32"], || at!(lax::select_n(&ones(3), &[ones(3), ones(3)])));
    t.row("lax::clamp: bounds", Type, &["bounds", "scalars or of its shape"], || {
        at!(lax::clamp(ones(3), &array(1.0f32), ones(3)))
    });
    t.row("lax::clamp: dtypes", Type, &["same dtypes"], || at!(lax::clamp(arange(0..3), &ones(3), 1)));
    t.row("lax::bitcast: booleans", Type, &["cannot read bool as uint8"], || {
        at!(lax::bitcast_convert_type(&array([true]), DType::U8))
    });
    t.row("lax::bitcast: last dimension", Type, &["last dimension of size 4"], || {
        at!(lax::bitcast_convert_type(&array([1u8, 2]), DType::U32))
    });
    t.row("logaddexp: shapes", Value, &["logaddexp got incompatible shapes"], || at!(logaddexp(ones(3), ones(4))));
    t.row("max: complex", Type, &["real types"], || at!(complex(ones(2), 0.0).max(..)));
    t.row("argmax: axis", Index, &["axis 1 is out of bounds"], || at!(ones(3).argmax(1)));
}
