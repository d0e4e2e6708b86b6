//! Compile errors for functions, layers and methods of PyTorch, candle and burn that have other names here, each with what to write
//! instead. Nothing here can be called: each needs a trait that no type implements, and the trait's message is the error. The lifetime
//! of the bounds defers their check to the call.

use shardax::prelude::*;

use crate::Module;

/// Defines functions and layers of other libraries, and methods of their models, with their arguments and the error of a call.
macro_rules! hints {
    (
        functions { $($function:ident($($function_argument:ident),*) $instead_of_function:literal;)* }
        layers { $($layer:ident($($layer_argument:ident),*) $instead_of_layer:literal;)* }
        methods { $($method:ident($($method_argument:ident),*) $instead_of_method:literal;)* }
    ) => {
        /// A trait for each name.
        pub mod messages {
            $(
                pub mod $function {
                    #[diagnostic::on_unimplemented(message = $instead_of_function, label = "not a function of shardax")]
                    pub trait Function {}
                }
            )*
            $(
                #[diagnostic::on_unimplemented(message = $instead_of_layer, label = "not a layer of shardax")]
                pub trait $layer {}
            )*
            $(
                pub mod $method {
                    #[diagnostic::on_unimplemented(message = $instead_of_method, label = "not a method of models")]
                    pub trait Method {}
                }
            )*
        }

        $(
            pub fn $function($($function_argument: impl Sized),*) -> Array
            where
                for<'a> &'a (): messages::$function::Function,
            {
                $(let _ = $function_argument;)*
                array(0)
            }
        )*

        $(
            pub struct $layer;

            impl $layer {
                pub fn new($($layer_argument: impl Sized),*) -> Self
                where
                    for<'a> &'a (): messages::$layer,
                {
                    $(let _ = $layer_argument;)*
                    $layer
                }
            }
        )*

        /// The methods of models.
        pub trait ModuleHints: Module {
            $(
                fn $method(&self, $($method_argument: impl Sized),*) -> Array
                where
                    for<'a> &'a (): messages::$method::Method,
                {
                    $(let _ = $method_argument;)*
                    array(0)
                }
            )*
        }

        impl<M: Module> ModuleHints for M {}
    };
}

hints! {
    functions {
        binary_cross_entropy(probabilities, labels)
            "there is no function `binary_cross_entropy`: write `sigmoid_binary_cross_entropy(logits, labels).mean(..)`, of logits";
        binary_cross_entropy_with_logits(logits, labels)
            "there is no function `binary_cross_entropy_with_logits`: write `sigmoid_binary_cross_entropy(logits, labels).mean(..)`";
        cross_entropy(logits, labels)
            "there is no function `cross_entropy`: write `softmax_cross_entropy_with_integer_labels(logits, labels).mean(..)`";
        cross_entropy_loss(logits, labels)
            "there is no function `cross_entropy_loss`: write `softmax_cross_entropy_with_integer_labels(logits, labels).mean(..)`";
        l1_loss(predictions, targets) "there is no function `l1_loss`: write `(predictions - targets).abs().mean(..)`";
        mse_loss(predictions, targets) "there is no function `mse_loss`: write `mse(predictions, targets)`";
    }
    layers {
        AvgPool2d(window) "there is no layer `AvgPool2d`: write `avg_pool(x, [2, 2], [2, 2])`";
        BatchNorm1d(features, rngs) "there is no layer `BatchNorm1d`: write `BatchNorm::new(features, &mut rngs)`, whose channels are last";
        BatchNorm2d(features, rngs) "there is no layer `BatchNorm2d`: write `BatchNorm::new(features, &mut rngs)`, whose channels are last";
        Conv1d(inputs, outputs, kernel, rngs)
            "there is no layer `Conv1d`: write `Conv::new(1, 8, [3], &mut rngs)`, whose channels are last";
        Conv2d(inputs, outputs, kernel, rngs)
            "there is no layer `Conv2d`: write `Conv::new(1, 8, [3, 3], &mut rngs)`, whose channels are last";
        Conv3d(inputs, outputs, kernel, rngs)
            "there is no layer `Conv3d`: write `Conv::new(1, 8, [3, 3, 3], &mut rngs)`, whose channels are last";
        Embedding(tokens, features, rngs) "there is no layer `Embedding`: write `Embed::new(tokens, features, &mut rngs)`";
        Gru(inputs, features, rngs) "there is no layer `Gru`: write `Rnn::new(GruCell::new(inputs, features, &mut rngs))`";
        Lstm(inputs, features, rngs) "there is no layer `Lstm`: write `Rnn::new(LstmCell::new(inputs, features, &mut rngs))`";
        MaxPool2d(window) "there is no layer `MaxPool2d`: write `max_pool(x, [2, 2], [2, 2])`";
    }
    methods {
        load_state_dict(state) "models have no method `load_state_dict`: write `model.with_state(&state)?`";
        named_parameters() "models have no method `named_parameters`: write `model.state()`, whose arrays have names";
        num_parameters() "models have no method `num_parameters`: write `model.parameter_count()`";
        parameters() "models have no method `parameters`: a model is a tree of its arrays, which `model.state()` has by their names";
        params() "models have no method `params`: a model is a tree of its arrays, which `model.state()` has by their names";
        state_dict() "models have no method `state_dict`: write `model.state()`";
        zero_grad() "models keep no gradients: `grad(loss).call(&model)?` returns them";
    }
}
