//! Attributes that transform a function: `#[jit]`, `#[pmap]` and their relatives.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, FnArg, Ident, ItemFn, Lit, Pat, Result, ReturnType, Token, Type};

/// A transformation that is used as an attribute.
pub struct Transformation {
    /// The name of its function in `shardax`.
    pub name: &'static str,
    /// The type that it returns, if programs are compiled once and kept; such a type has a method `lower`.
    pub kept_type: Option<&'static str>,
    /// Options that name arguments, each with the method that takes their positions. JAX's names are accepted, too.
    pub argument_options: &'static [(&'static str, &'static str)],
    /// Options that are the parameters of one method, in order, such as the rules of a derivative.
    pub rules: Option<(&'static str, &'static [&'static str])>,
}

pub const JIT: Transformation = Transformation {
    name: "jit",
    kept_type: Some("Jit"),
    argument_options: &[
        ("donate", "donate_argnums"),
        ("static_args", "static_argnums"),
        ("donate_argnames", "donate_argnums"),
        ("static_argnames", "static_argnums"),
    ],
    rules: None,
};

pub const PMAP: Transformation = Transformation {
    name: "pmap",
    kept_type: Some("Pmap"),
    argument_options: &[("donate", "donate_argnums"), ("static_args", "static_broadcasted_argnums")],
    rules: None,
};

pub const VMAP: Transformation = Transformation { name: "vmap", kept_type: None, argument_options: &[], rules: None };

pub const CHECKPOINT: Transformation =
    Transformation { name: "checkpoint", kept_type: None, argument_options: &[], rules: None };

pub const CUSTOM_VJP: Transformation = Transformation {
    name: "custom_vjp",
    kept_type: None,
    argument_options: &[],
    rules: Some(("defvjp", &["fwd", "bwd"])),
};

pub const CUSTOM_JVP: Transformation =
    Transformation { name: "custom_jvp", kept_type: None, argument_options: &[], rules: Some(("defjvp", &["rule"])) };

/// An option of the attribute: `name = value`.
struct OptionValue {
    name: Ident,
    value: Expr,
}

impl Parse for OptionValue {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(OptionValue { name, value: input.parse()? })
    }
}

/// A parameter of the function: its name outside of the function, and its type.
struct Parameter {
    name: Ident,
    ty: Type,
}

/// Expands a function with an attribute into a function that calls the transformed one, and a type of the same name
/// without values of its own, which can be passed to other transformations as `name {}`.
pub fn expand(transformation: &Transformation, options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(function)?;
    let options = syn::parse::Parser::parse2(Punctuated::<OptionValue, Token![,]>::parse_terminated, options)?;
    let parameters = parameters(transformation, &function)?;
    let methods = methods(transformation, &options, &parameters)?;

    // The parts of the user's function that the expansion needs: names and types of parameters, and the result. The
    // function returns a `Result` in any case, because a transformed function can fail.
    let (visibility, name) = (&function.vis, &function.sig.ident);
    let (names, types): (Vec<_>, Vec<_>) = parameters.iter().map(|parameter| (&parameter.name, &parameter.ty)).unzip();
    let attributes = &function.attrs;
    let result = match &function.sig.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => quote!(#ty),
    };
    let returned =
        if is_result(&function.sig.output) { quote!(#result) } else { quote!(::shardax::error::Result<#result>) };
    // The user's function under another name, without attributes except for lints, which concern its body.
    let body = ItemFn {
        attrs: function.attrs.iter().filter(|attribute| is_lint(attribute)).cloned().collect(),
        vis: syn::Visibility::Inherited,
        sig: syn::Signature { ident: format_ident!("__{name}_traced"), ..function.sig.clone() },
        block: function.block.clone(),
    };
    let (body_name, transformed_name) = (&body.sig.ident, format_ident!("__{name}_transformed"));
    let arguments = quote!((#(#types,)*));
    let transform = format_ident!("{}", transformation.name, span = name.span());
    let reference = match transformation.kept_type {
        Some(_) => quote!(#transformed_name()),
        None => quote!(&#transformed_name()),
    };
    // Two types without values implement `Function`, instead of function pointers, because programs are shared by
    // functions without captures: an inner type that calls the body, and an outer one that calls the transformed function.
    let [inner, outer] = [
        quote!(::shardax::function::IntoOutput::into_output(#body_name(#(#names),*))),
        quote!(::shardax::Function::apply(#reference, (#(#names,)*))),
    ]
    .map(|apply| {
        quote! {
            impl ::shardax::Function<#arguments> for #name {
                type Output = <#result as ::shardax::function::IntoOutput>::Output;
                #[track_caller]
                fn apply(&self, (#(#names,)*): #arguments) -> ::shardax::error::Result<Self::Output> { #apply }
            }
        }
    });
    // A function that returns the transformed one. A `static` keeps it if its programs are compiled once; the other
    // transformations are cheap to create, and are created for each call.
    let transformed = match transformation.kept_type {
        Some(kept_type) => {
            let kept_type = format_ident!("{kept_type}");
            quote! {
                fn #transformed_name() -> &'static ::shardax::#kept_type<
                    impl ::shardax::Function<#arguments, Output = <#result as ::shardax::function::IntoOutput>::Output>,
                    #arguments,
                > {
                    // Shadows the outer type, so that programs and errors have the function's name.
                    struct #name {}
                    #inner
                    static TRANSFORMED: ::std::sync::LazyLock<::shardax::#kept_type<#name, #arguments>> =
                        ::std::sync::LazyLock::new(|| ::shardax::#transform(#name {})#methods);
                    &TRANSFORMED
                }
            }
        }
        None => quote! {
            fn #transformed_name()
            -> impl ::shardax::Function<#arguments, Output = <#result as ::shardax::function::IntoOutput>::Output> {
                struct #name {}
                #inner
                ::shardax::#transform(#name {})#methods
            }
        },
    };
    // A single argument is passed without a tuple.
    let call_arguments = match &*names {
        [single] => quote!(#single),
        _ => quote!((#(#names),*)),
    };
    let lower = transformation.kept_type.map(|_| {
        quote! {
            impl #name {
                /// Traces and lowers the function for arguments of these types, which `shape_dtype_struct` can stand for.
                #[track_caller]
                #[allow(dead_code)]
                #visibility fn lower(
                    arguments: impl ::shardax::function::IntoArgs<#arguments>,
                ) -> ::shardax::error::Result<::shardax::stages::Lowered<
                    #arguments,
                    <#result as ::shardax::function::IntoOutput>::Output,
                >> {
                    #transformed_name().lower(arguments)
                }
            }
        }
    });
    Ok(quote! {
        #(#attributes)*
        #[track_caller]
        #visibility fn #name(#(#names: impl ::shardax::function::IntoArg<#types>),*) -> #returned {
            ::shardax::Function::call(#reference, #call_arguments)
        }

        #[doc(hidden)]
        #[allow(non_snake_case)]
        #body

        #[doc(hidden)]
        #[allow(non_camel_case_types, non_snake_case)]
        #transformed

        #[doc = concat!("The function [`", stringify!(#name), "`](fn@", stringify!(#name), ") as an argument of transformations.")]
        #[allow(non_camel_case_types, dead_code)]
        #[derive(Clone, Copy, Debug)]
        #visibility struct #name {}

        #lower

        #outer
    })
}

fn is_lint(attribute: &syn::Attribute) -> bool {
    ["allow", "expect"].iter().any(|name| attribute.path().is_ident(name))
}

/// Reads the parameters. Fails for functions that cannot be transformed.
fn parameters(transformation: &Transformation, function: &ItemFn) -> Result<Vec<Parameter>> {
    let signature = &function.sig;
    let name = transformation.name;
    if let Some(parameter) = signature.generics.params.first() {
        let message = format!(
            "a function with #[{name}] has no generic parameters: remove the attribute, and call `{name}(function::<T>)` for each type"
        );
        return Err(Error::new_spanned(parameter, message));
    }
    if let Some(asyncness) = &signature.asyncness {
        return Err(Error::new_spanned(asyncness, format!("a function with #[{name}] cannot be async")));
    }
    signature.inputs.iter().enumerate().map(|(position, input)| parameter(name, position, input)).collect()
}

/// Reads a parameter. A pattern, such as a tuple, is named after its position.
fn parameter(transformation: &str, position: usize, input: &FnArg) -> Result<Parameter> {
    let typed = match input {
        FnArg::Typed(typed) => typed,
        FnArg::Receiver(receiver) => {
            let message = format!(
                "#[{transformation}] is for functions, not for methods: write `{transformation}(|model: Model, x: Array| model.forward(&x))`, or a function with this argument"
            );
            return Err(Error::new_spanned(receiver, message));
        }
    };
    if let Type::Reference(reference) = &*typed.ty {
        let message =
            "a transformed function takes its arguments by value: remove the `&` (callers may pass a reference)";
        return Err(Error::new_spanned(reference, message));
    }
    if let Type::ImplTrait(bounds) = &*typed.ty {
        let message = "a transformed function takes arguments of a single type, such as `Array` (callers may pass a reference or a number)";
        return Err(Error::new_spanned(bounds, message));
    }
    let name = match &*typed.pat {
        Pat::Ident(pattern) => pattern.ident.clone(),
        _ => format_ident!("argument_{position}"),
    };
    Ok(Parameter { name, ty: (*typed.ty).clone() })
}

/// Writes the options as calls of the transformation's methods.
fn methods(
    transformation: &Transformation,
    options: &Punctuated<OptionValue, Token![,]>,
    parameters: &[Parameter],
) -> Result<TokenStream> {
    let mut methods = TokenStream::new();
    let rule_names = transformation.rules.map_or(&[][..], |(_, names)| names);
    for OptionValue { name, value } in options {
        if rule_names.iter().any(|rule| name == rule) {
            continue;
        }
        let named = transformation.argument_options.iter().find(|(option, _)| name == option);
        methods.extend(match named {
            Some((_, method)) => {
                let (method, positions) = (Ident::new(method, name.span()), positions(value, parameters)?);
                quote_spanned!(name.span()=> .#method(#positions))
            }
            None => {
                let value = axes_as_tuple(name, value);
                quote_spanned!(name.span()=> .#name(#value))
            }
        });
    }
    if let Some((method, names)) = transformation.rules {
        // Rules are arguments of one method, in the order of its parameters, which may differ from the order of the options.
        let rules = names.iter().map(|rule| rule_option(options, rule)).collect::<Result<Vec<_>>>()?;
        let method = format_ident!("{method}");
        methods.extend(quote!(.#method(#(#rules),*)));
    }
    Ok(methods)
}

/// Writes a list of axes with `None`, such as `in_axes = [0, None]`, as the tuple that Rust needs, because the elements of a
/// list have one type.
fn axes_as_tuple(option: &Ident, value: &Expr) -> TokenStream {
    let Expr::Array(list) = value else { return quote!(#value) };
    let has_none = list.elems.iter().any(|axis| matches!(axis, Expr::Path(path) if path.path.is_ident("None")));
    let axes = &list.elems;
    if has_none && (option == "in_axes" || option == "out_axes") {
        let axes = axes.iter();
        quote_spanned!(value.span()=> (#(#axes,)*))
    } else {
        quote!(#value)
    }
}

/// Returns the value of the option for a derivative rule, which must be present.
fn rule_option<'a>(options: &'a Punctuated<OptionValue, Token![,]>, rule: &str) -> Result<&'a Expr> {
    let option = options.iter().find(|option| option.name == rule);
    option.map(|option| &option.value).ok_or_else(|| {
        let message = format!("the option `{rule}` is missing: write `{rule} = name`, with the name of a function");
        Error::new(Span::call_site(), message)
    })
}

/// Returns the positions of arguments that an option names, such as `[state, batch]` or, as in JAX, `["state", "batch"]`.
fn positions(value: &Expr, parameters: &[Parameter]) -> Result<TokenStream> {
    let names: Vec<&Expr> = match value {
        Expr::Array(array) => array.elems.iter().collect(),
        single => vec![single],
    };
    let positions = names.into_iter().map(|name| position(name, parameters)).collect::<Result<Vec<_>>>()?;
    Ok(quote!([#(#positions),*]))
}

/// Returns the position of the argument with this name.
fn position(expression: &Expr, parameters: &[Parameter]) -> Result<i32> {
    let name = match expression {
        Expr::Path(path) => path.path.get_ident().map(Ident::to_string),
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    };
    let position = name.and_then(|name| parameters.iter().position(|parameter| parameter.name == name));
    position.map(|position| position as i32).ok_or_else(|| {
        let names: Vec<String> = parameters.iter().map(|parameter| parameter.name.to_string()).collect();
        let message = format!("this is not an argument of the function, whose arguments are {}", names.join(", "));
        Error::new(expression.span(), message)
    })
}

fn is_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else { return false };
    matches!(&**ty, Type::Path(path) if path.path.segments.last().is_some_and(|segment| segment.ident == "Result"))
}
