//! `platform_dependent`: the function of the platform that a program is compiled for.

use std::panic::Location;

use smallvec::smallvec;

use super::control_flow::{Branches, choose};
use super::primitive::call::Call;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, Primitive, ShardingRule, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::core::tree::{Flat, Tree};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result, err};
use crate::interpret::flat::{avals_of, trace_flat};
use crate::interpret::higher_order::bind_checked;
use crate::shape::Shape;
use crate::source;

/// Applies the branch of the platform that the program is compiled for, `cpu`, `cuda`, `rocm`, `gpu` or `tpu`;
/// `default` is for all others. The other branches are traced too, but no part of the compiled program. A branch can
/// use operations that other platforms lack, such as a kernel exported for its own.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::platform_dependent;
/// let f = jit(|x: Array| platform_dependent(["cpu", "default"], (|x: Array| x + 1, |x: Array| x * 10), x));
/// assert_eq!(f.call(array(5))?.item::<i32>()?, 6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// [`vmap`](crate::vmap()) and derivatives apply to each branch.
///
/// # Errors
/// Returns an error if the branches' results differ in structure, dtypes or shapes, if there are not as many branches
/// as platforms, and, as the program is compiled, if no branch is for its platform.
#[track_caller]
pub fn platform_dependent<T: Tree, B: Branches<T>>(
    platforms: impl AsRef<[&'static str]>,
    branches: B,
    operands: T,
) -> Result<B::Output> {
    let location = Location::caller();
    let _line = source::enter_at(location);
    select_branch(platforms.as_ref(), &branches, &operands, location).map_err(|e: Error| e.at(location))?.build()
}

fn select_branch<T: Tree, B: Branches<T>>(
    platforms: &[&'static str],
    branches: &B,
    operands: &T,
    location: &'static Location<'static>,
) -> Result<Flat> {
    if platforms.len() != branches.count() {
        return Err(err!(
            Value,
            "platform_dependent got {} branches for the platforms {platforms:?}",
            branches.count()
        )
        .help("pass one function for each platform, in the same order"));
    }
    let platform_names = ["cpu", "cuda", "rocm", "gpu", "tpu", "default"];
    if let Some(unknown) = platforms.iter().find(|name| !platform_names.contains(name)) {
        return Err(err!(Value, "unknown platform {unknown:?}: the platforms are {platform_names:?}")
            .help("use one of these names; the branch of `default` is for all platforms that you do not name"));
    }
    let flat = Flat::from_arguments(operands);
    // One program, so that the index is known where the branches are written.
    let (traced, def) = trace_flat(&flat.def, &avals_of(&flat)?, &|flat: &Flat| {
        let index = bind1(PlatformIndex(platforms.to_vec()), &[]);
        let functions: Vec<_> =
            (0..platforms.len()).map(|i| move |flat: &Flat| Ok(Flat::of(&branches.apply(i, flat.build()?)?))).collect();
        let functions: Vec<&dyn Fn(&Flat) -> Result<Flat>> = functions.iter().map(|f| f as _).collect();
        choose(index, &functions, platforms, flat, location)
    })?;
    let args = [&traced.captures[..], &flat.leaves].concat();
    let call = Call { name: "platform_dependent".to_owned(), program: traced.program.into() };
    Ok(Flat { leaves: bind_checked(call, &args)?.into_iter().collect(), def })
}

/// The index of the platform that the program is compiled for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PlatformIndex(Vec<&'static str>);

impl Primitive for PlatformIndex {
    fn name(&self) -> &'static str {
        "platform_index"
    }

    fn print_params(&self) -> String {
        format!("platforms={:?}", self.0)
    }

    fn infer(&self, _args: &[Aval]) -> Result<Avals> {
        Ok(smallvec![Aval::new(DType::I32, Shape::default())])
    }

    fn lower(&self, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let index = self.0.iter().position(|name| cx.platform.is_named(name));
        let index = index.or_else(|| self.0.iter().position(|name| *name == "default")).ok_or_else(|| {
            err!(NotImplemented, "platform_dependent has no branch for {}, only for {:?}", cx.platform.text(), self.0)
                .help("add a branch for it, or one named \"default\"")
        })?;
        let value = cx.constant(Scalar::Int(index as _), &outs[0]);
        cx.set_platform_index(value, index);
        Ok(vec![value])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.replicated()
    }
}
