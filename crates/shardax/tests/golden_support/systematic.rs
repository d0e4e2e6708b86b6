//! Cases of the other families once more, mapped over batches or of other dtypes: `family.case` is that case's function.

use super::{
    Case, Fun, binary, control, conv, convert, dot, index, linalg, nn, random, reduce, select, shape, sort, unary,
    window,
};

pub fn function(case: &Case) -> Option<Fun> {
    let (family, name) = case.name.split_once('.')?;
    // Cases in half precision have the name of the float32 case with a suffix.
    let halved = ["_bf16", "_f16"].iter().find_map(|dtype| name.strip_suffix(dtype));
    let name = halved.unwrap_or(name);
    let case_of = |family| Case {
        family,
        name: name.to_owned(),
        op: case.op.clone(),
        meta: case.meta.clone(),
        tensors: case.tensors.clone(),
    };
    match family {
        "unary" => unary::function(&case_of("unary")),
        "binary" => binary::function(&case_of("binary")),
        "reduce" => reduce::function(&case_of("reduce")),
        "select" => select::function(&case_of("select")),
        "convert" => convert::function(&case_of("convert")),
        "shape" => shape::function(&case_of("shape")),
        "index" => index::function(&case_of("index")),
        "dot" => dot::function(&case_of("dot")),
        "sort" => sort::function(&case_of("sort")),
        "control" => control::function(&case_of("control")),
        "nn" => nn::function(&case_of("nn")),
        "conv" => conv::function(&case_of("conv")),
        "window" => window::function(&case_of("window")),
        "linalg" => linalg::function(&case_of("linalg")),
        "random" => random::function(&case_of("random")),
        _ => None,
    }
}
