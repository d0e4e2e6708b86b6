//! Cases of the other families once more, mapped over batches or of other dtypes: `family.case` is that case's function.

use super::{
    Case, Fun, binary, control, conv, convert, dot, index, linalg, nn, random, reduce, select, shape, sort, unary,
    window,
};

pub fn function(case: &Case) -> Option<Fun> {
    let (family, name) = case.name.split_once('.')?;
    let halved = ["_bf16", "_f16"].iter().find_map(|dtype| name.strip_suffix(dtype));
    let name = halved.unwrap_or(name);
    let of = |family| Case {
        family,
        name: name.to_owned(),
        op: case.op.clone(),
        meta: case.meta.clone(),
        tensors: case.tensors.clone(),
    };
    match family {
        "unary" => unary::function(&of("unary")),
        "binary" => binary::function(&of("binary")),
        "reduce" => reduce::function(&of("reduce")),
        "select" => select::function(&of("select")),
        "convert" => convert::function(&of("convert")),
        "shape" => shape::function(&of("shape")),
        "index" => index::function(&of("index")),
        "dot" => dot::function(&of("dot")),
        "sort" => sort::function(&of("sort")),
        "control" => control::function(&of("control")),
        "nn" => nn::function(&of("nn")),
        "conv" => conv::function(&of("conv")),
        "window" => window::function(&of("window")),
        "linalg" => linalg::function(&of("linalg")),
        "random" => random::function(&of("random")),
        _ => None,
    }
}
