//! Images of other sizes.

use shardax::image::{ResizeMethod, ResizeOptions};

use super::{Case, Fun, one, three};

pub fn function(case: &Case) -> Option<Fun> {
    let method = match case.text("method") {
        "nearest" => ResizeMethod::Nearest,
        "linear" => ResizeMethod::Linear,
        "cubic" => ResizeMethod::Cubic,
        "lanczos3" => ResizeMethod::Lanczos3,
        "lanczos5" => ResizeMethod::Lanczos5,
        _ => return None,
    };
    let options = ResizeOptions::new(method).antialias(case.flag("antialias"));
    let shape: Vec<usize> = case.ints("shape").iter().map(|&n| n as usize).collect();
    match case.op.as_str() {
        "resize" => one(move |x| options.resize(x, shape.clone())),
        "scale_and_translate" => {
            let dims = case.axes("spatial_dims");
            three(move |x, s, t| options.scale_and_translate(x, shape.clone(), &dims, s, t))
        }
        _ => None,
    }
}
