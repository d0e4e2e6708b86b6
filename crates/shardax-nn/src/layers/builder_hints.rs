//! Compile errors for options that are set on a layer after it was built. Nothing here can be called: each method needs
//! a trait that no type implements, and the trait's message is the error.

use std::marker::PhantomData;

use super::*;

/// Carries the bound of an option of type `T`.
#[doc(hidden)]
pub struct BuiltLayer<T>(PhantomData<T>);

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the options of a layer are set before it is built",
    label = "not a method of the layer, but of its builder",
    note = "`Linear::builder(3, 2).use_bias(false).build(&mut rngs)`, `Conv::builder(3, 16, [3, 3]).strides([2, 2]).build(&mut rngs)`",
    note = "`BatchNorm::builder(16).axis_name(\"batch\").build(&mut rngs)`"
)]
pub trait SetsOptions {}

/// Defines the methods of each builder for the layers that it builds.
macro_rules! options_of_builders {
    ($($($layer:ident)+: $options:tt;)*) => {
        $($(options_of_builders! { @ $layer $options })+)*
    };
    (@ $layer:ident ($($option:ident)+)) => {
        #[doc(hidden)]
        impl $layer {
            $(
                pub fn $option<T>(self, _: T) -> Self
                where
                    BuiltLayer<T>: SetsOptions,
                {
                    self
                }
            )+
        }
    };
}

options_of_builders! {
    Linear LinearGeneral Einsum: (use_bias param_dtype precision kernel_axes kernel_init bias_init);
    Conv ConvTranspose: (use_bias param_dtype precision kernel_axes kernel_init bias_init strides padding kernel_dilation);
    LayerNorm RmsNorm GroupNorm InstanceNorm: (use_bias use_scale param_dtype epsilon scale_init bias_init);
    BatchNorm: (use_bias use_scale param_dtype epsilon scale_init bias_init momentum axis_name);
}
