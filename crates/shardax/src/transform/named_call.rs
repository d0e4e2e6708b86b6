//! `named_call`: a function under a name scope.

use std::marker::PhantomData;

use crate::core::function::Function;
use crate::core::tree::Tree;
use crate::error::Result;
use crate::scope::named_scope;

/// A function whose operations are in a name scope; see [`named_call`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct NamedCall<F, Args> {
    f: F,
    name: String,
    args: PhantomData<fn(Args)>,
}

/// Returns a function like `f` that adds `name` to the names of its operations in programs, profiles and errors, as a
/// [`named_scope`](crate::named_scope()) does.
///
/// ```
/// # use shardax::prelude::*;
/// let block = shardax::named_call(|x: Array| x.sin(), "block");
/// let text = jit(move |x: Array| block.call(x)).lower(ones([2]))?.as_text_with_debug_info()?;
/// assert!(text.contains("/block/sin"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn named_call<Args: Tree, F: Function<Args>>(f: F, name: impl Into<String>) -> NamedCall<F, Args> {
    NamedCall { f, name: name.into(), args: PhantomData }
}

impl<Args: Tree, F: Function<Args>> Function<Args> for NamedCall<F, Args> {
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<Self::Output> {
        let _scope = named_scope(self.name.as_str());
        self.f.apply(args)
    }
}
