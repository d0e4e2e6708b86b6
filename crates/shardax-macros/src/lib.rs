//! Macros for shardax: the derives [`Tree`](macro@Tree), [`Module`](macro@Module) and [`Record`](macro@Record), and attributes
//! that transform functions, such as [`jit`](macro@jit).

#![warn(missing_docs)]

mod record;
mod transformed;

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Result, Token, parse_macro_input, parse_quote};

/// Derives `shardax::Tree` for a struct or an enum: its fields are its children, in order. You can then pass values of
/// the type to functions such as `jit` and `grad`. The trait's page has an example.
///
/// A field marked `#[tree(static)]` is part of the tree's structure instead, so that a program is compiled again if the
/// field changes; its type must be
/// `Clone + Eq + Hash + Debug + Send + Sync + 'static`. A field marked `#[tree(axis_names = names)]` is an array or an
/// optional array whose dimensions have the logical names in the field `names`, an `Option<AxisNames>`. The names can also be
/// in a field of a field: `#[tree(axis_names = options.names)]`.
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    tree(input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `shardax_nn::Module` for a struct: a tree (see [`Tree`](macro@Tree)) with the methods of a neural network's
/// module. You should not derive `Tree` as well, because this derive does.
#[proc_macro_derive(Module, attributes(tree, module))]
pub fn derive_module(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let name = input.ident.clone();
    let (generics, module) = (input.generics.clone(), quote!(::shardax_nn::Module));
    let (_, types, _) = generics.split_for_impl();
    let mut bounded = generics.clone();
    for param in bounded.type_params_mut() {
        param.bounds.push(parse_quote!(::shardax::Tree));
    }
    let (params, _, clause) = bounded.split_for_impl();
    let tree = tree(input).unwrap_or_else(Error::into_compile_error);
    quote! {
        #tree
        impl #params #module for #name #types #clause {}
    }
    .into()
}

/// Derives `shardax_train::data::Record` for a struct: its fields are the arrays of an example, by their names. The trait's
/// page has an example.
///
/// A field marked `#[record(shape = [48, 6])]` is a list of elements with this shape. You need the attribute because the
/// type of a list does not determine a shape.
#[proc_macro_derive(Record, attributes(record))]
pub fn derive_record(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    record::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Compiles the function when you first call it, as the function `jit` does.
///
/// The attribute's options are methods of `Jit`, such as `keep_unused = true`. `donate` and `static_args`, or
/// JAX's `donate_argnames` and `static_argnames`, name arguments: `#[jit(donate = [state])]`.
///
/// You can then pass each argument by value or by reference, and the function returns a `Result`. You can pass the function
/// to other transformations by its name, or as `name {}` if its argument types cannot be inferred. `name::lower` lowers it
/// ahead of time. The page of the function `jit` has an example.
#[proc_macro_attribute]
pub fn jit(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::JIT, options, function)
}

/// Runs the function on each device with a part of the arguments, as the function `pmap` does.
///
/// The attribute's options are methods of `Pmap`: `#[pmap(axis_name = "batch", in_axes = (None, 0))]`. `donate` and
/// `static_args` name arguments. See [`jit`](macro@jit) for the ways to use the function.
#[proc_macro_attribute]
pub fn pmap(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::PMAP, options, function)
}

/// Vectorizes the function, as the function `vmap` does.
///
/// The attribute's options are methods of `Vmap`: `#[vmap(in_axes = (None, 0))]`. See [`jit`](macro@jit) for the ways to use
/// the function; there is no `lower`.
#[proc_macro_attribute]
pub fn vmap(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::VMAP, options, function)
}

/// Recomputes the intermediate values of the function for its gradient instead of storing them, as the function
/// `checkpoint` does.
///
/// The attribute's options are methods of `Checkpoint`. See [`jit`](macro@jit) for the ways to use the function; there is no
/// `lower`.
#[proc_macro_attribute]
pub fn checkpoint(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::CHECKPOINT, options, function)
}

/// Defines a rule for the gradient of the function, as the function `custom_vjp` does.
///
/// The options `fwd` and `bwd` name the functions to pass to `defvjp`: `#[custom_vjp(fwd = f_fwd, bwd = f_bwd)]`. See
/// [`jit`](macro@jit) for the ways to use the function; there is no `lower`.
#[proc_macro_attribute]
pub fn custom_vjp(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::CUSTOM_VJP, options, function)
}

/// Defines a rule for the derivative of the function, as the function `custom_jvp` does.
///
/// The option `rule` names the function to pass to `defjvp`: `#[custom_jvp(rule = f_jvp)]`. See [`jit`](macro@jit) for the
/// ways to use the function; there is no `lower`.
#[proc_macro_attribute]
pub fn custom_jvp(options: proc_macro::TokenStream, function: proc_macro::TokenStream) -> proc_macro::TokenStream {
    attribute(&transformed::CUSTOM_JVP, options, function)
}

fn attribute(
    transformation: &transformed::Transformation,
    options: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let expanded = transformed::expand(transformation, options.into(), function.clone().into());
    // The function is kept as it is, because callers would otherwise get further errors that it does not exist.
    expanded.unwrap_or_else(|error| TokenStream::from_iter([error.into_compile_error(), function.into()])).into()
}

fn tree(input: DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let mut generics = input.generics.clone();
    for param in generics.type_params_mut() {
        param.bounds.push(parse_quote!(::shardax::Tree));
    }
    let (params, _, clause) = generics.split_for_impl();
    let (_, types, _) = input.generics.split_for_impl();
    let text = name.to_string();
    let (flatten, unflatten) = match &input.data {
        Data::Struct(data) => {
            let shape = Shape::new(&data.fields, &text)?;
            let (pattern, write) = shape.write(quote!(#name));
            let (node, read) = (&shape.node, shape.read(quote!(#name)));
            (quote! { let #pattern = self; #write }, quote! { from.expect(#node)?; ::core::result::Result::Ok(#read) })
        }
        Data::Enum(data) => {
            let mut writes = Vec::new();
            let mut reads = Vec::new();
            for variant in &data.variants {
                let ident = &variant.ident;
                let shape = Shape::new(&variant.fields, &format!("{text}::{ident}"))?;
                let (pattern, write) = shape.write(quote!(#name::#ident));
                writes.push(quote! { #pattern => { #write } });
                let (node, read) = (&shape.node, shape.read(quote!(#name::#ident)));
                reads.push(quote! { if node == (#node) { return ::core::result::Result::Ok(#read); } });
            }
            (
                quote! { match self { #(#writes)* } },
                quote! {
                    let node = from.node()?;
                    #(#reads)*
                    ::core::result::Result::Err(::shardax::tree::unexpected(#text, &node))
                },
            )
        }
        Data::Union(_) => return Err(Error::new_spanned(name, "a union cannot be a tree")),
    };
    let single = single_argument(name, &params, &types, clause);
    let prefix = prefix(&input);
    // The underscores make a collision with a type parameter of the user unlikely.
    let part = format_ident!("__Part");
    let mut composed = generics.clone();
    composed.params.push(parse_quote!(#part: ::shardax::Tree));
    let (composed, _, _) = composed.split_for_impl();
    Ok(quote! {
        impl #composed ::shardax::tree::Compose<#part> for #name #types #clause {
            type Composed = ::shardax::tree::Composed<Self, #part>;
            fn compose(
                self,
                part: &mut dyn FnMut() -> ::shardax::Result<#part>,
            ) -> ::shardax::Result<Self::Composed> {
                ::shardax::tree::Composed::new(&self, part)
            }
        }
        impl #params ::shardax::Tree for #name #types #clause {
            fn flatten(&self, out: &mut ::shardax::tree::Flat) { #flatten }
            fn unflatten(from: &mut ::shardax::tree::Unflatten<'_>) -> ::shardax::Result<Self> { #unflatten }
        }
        impl #params ::shardax::tree::IntoTree for &#name #types #clause {
            type Tree = #name #types;
            fn into_tree(self) -> Self::Tree { ::core::clone::Clone::clone(self) }
        }
        #single
        #prefix
    })
}

/// The type as the single argument of a call in a tuple, `f.call((params,))`.
fn single_argument(
    name: &Ident,
    params: &syn::ImplGenerics<'_>,
    types: &syn::TypeGenerics<'_>,
    clause: Option<&syn::WhereClause>,
) -> TokenStream {
    quote! {
        impl #params ::shardax::function::IntoArg<#name #types> for (#name #types,) #clause {
            fn into_arg(self) -> #name #types { self.0 }
        }
    }
}

/// A struct with type parameters as a tree of options, such as `Params { w: P!["x"], b: P![] }` for arguments of type
/// `Params<Array>`. Fields whose types have no parameter are left out.
fn prefix(input: &DeriveInput) -> TokenStream {
    let Data::Struct(data) = &input.data else { return TokenStream::new() };
    let parameters: Vec<String> = input.generics.type_params().map(|p| p.ident.to_string()).collect();
    let shape = Shape::new(&data.fields, "");
    let fields = data.fields.iter().zip(shape.iter().flat_map(|s| &s.fields)).enumerate();
    let with_parameters: Vec<_> = fields
        .filter(|(_, (f, parsed))| !parsed.options.is_static && mentions(quote!(#f), &parameters))
        .map(|(i, (f, _))| (f.ident.as_ref().map_or(syn::Member::from(i), |ident| ident.clone().into()), &f.ty))
        .collect();
    if with_parameters.is_empty() {
        return TokenStream::new();
    }
    let (name, value) = (&input.ident, format_ident!("__Value"));
    let (_, types, clause) = input.generics.split_for_impl();
    let predicates = clause.map(|clause| &clause.predicates).into_iter();
    let mut generics = input.generics.clone();
    generics.params.push(parse_quote!(#value));
    let (params, _, _) = generics.split_for_impl();
    let field_types: Vec<_> = with_parameters.iter().map(|(_, ty)| ty).collect();
    let members: Vec<_> = with_parameters.iter().map(|(member, _)| member).collect();
    let entries: Vec<_> = members
        .iter()
        .map(|member| quote!(::shardax::prefix::IntoPrefix::<#value>::into_prefix(self.#member)))
        .collect();
    let names = members.iter().map(|member| quote!(#member).to_string());
    let body = match data.fields {
        Fields::Named(_) => quote!(::shardax::prefix::Prefix::named([#((#names, #entries)),*])),
        _ => quote!(::shardax::prefix::Prefix::Node(::std::vec![#(#entries),*])),
    };
    quote! {
        impl #params ::shardax::prefix::IntoPrefix<#value> for #name #types
        where
            #(#predicates,)*
            #(#field_types: ::shardax::prefix::IntoPrefix<#value>,)*
        {
            fn into_prefix(self) -> ::shardax::prefix::Prefix<#value> { #body }
        }
    }
}

/// Returns `true` if one of the names is in the tokens.
fn mentions(tokens: TokenStream, names: &[String]) -> bool {
    tokens.into_iter().any(|token| match token {
        proc_macro2::TokenTree::Ident(ident) => names.contains(&ident.to_string()),
        proc_macro2::TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

/// The fields of a struct or a variant.
struct Shape {
    fields: Vec<Field>,
    kind: Kind,
    /// The node that describes the struct or variant in a flattened tree.
    node: TokenStream,
}

struct Field {
    ident: Option<Ident>,
    options: Options,
}

/// The options of `#[tree(…)]` on a field.
#[derive(Default)]
struct Options {
    is_static: bool,
    /// The field with the names of this field's dimensions, or the path to it: `options.names`.
    axis_names: Option<Punctuated<Ident, Token![.]>>,
}

enum Kind {
    Named,
    Tuple,
    Unit,
}

impl Shape {
    fn new(fields: &Fields, name: &str) -> Result<Self> {
        let kind = match fields {
            Fields::Named(_) => Kind::Named,
            Fields::Unnamed(_) => Kind::Tuple,
            Fields::Unit => Kind::Unit,
        };
        let fields: Vec<Field> = fields
            .iter()
            .map(|f| Ok(Field { ident: f.ident.clone(), options: options(&f.attrs)? }))
            .collect::<Result<_>>()?;
        // An unknown name would otherwise be reported in generated code, which the user cannot see.
        for names in fields.iter().filter_map(|f| f.options.axis_names.as_ref()) {
            if !fields.iter().any(|f| f.ident.as_ref() == names.first()) {
                return Err(Error::new_spanned(names, "no field of this struct has this name"));
            }
        }
        let names = fields.iter().enumerate().map(|(i, f)| match &f.ident {
            Some(ident) => ident.to_string(),
            None => i.to_string(),
        });
        let node = quote!(::shardax::tree::Node::Struct { name: #name, fields: &[#(#names),*] });
        Ok(Shape { fields, kind, node })
    }

    fn bindings(&self) -> Vec<Ident> {
        (0..self.fields.len()).map(|i| format_ident!("field_{i}")).collect()
    }

    /// A pattern that binds the fields, and the statements that write them.
    fn write(&self, path: TokenStream) -> (TokenStream, TokenStream) {
        let bindings = self.bindings();
        let pattern = match self.kind {
            Kind::Named => {
                let names = self.fields.iter().map(|f| &f.ident);
                quote!(#path { #(#names: #bindings),* })
            }
            Kind::Tuple => quote!(#path(#(#bindings),*)),
            Kind::Unit => quote!(#path),
        };
        let node = &self.node;
        let writes = self.fields.iter().zip(&bindings).map(|(f, b)| match &f.options {
            Options { is_static: true, .. } => {
                quote!(::shardax::Tree::flatten(&::shardax::Static(::core::clone::Clone::clone(#b)), out);)
            }
            Options { axis_names: Some(names), .. } => {
                let field = self.fields.iter().position(|f| f.ident.as_ref() == names.first()).map(|i| &bindings[i]);
                let inner = names.iter().skip(1);
                quote!(::shardax::tree::flatten_named(#b, &(*#field) #(.#inner)*, out);)
            }
            _ => quote!(::shardax::Tree::flatten(#b, out);),
        });
        (pattern, quote! { out.node(#node); #(#writes)* })
    }

    /// The expression that reads the fields.
    fn read(&self, path: TokenStream) -> TokenStream {
        let reads = self.fields.iter().map(|f| match &f.options {
            Options { is_static: true, .. } => quote!(<::shardax::Static<_> as ::shardax::Tree>::unflatten(from)?.0),
            Options { axis_names: Some(_), .. } => quote!(::shardax::tree::unflatten_named(from)?),
            _ => quote!(::shardax::Tree::unflatten(from)?),
        });
        match self.kind {
            Kind::Named => {
                let names = self.fields.iter().map(|f| &f.ident);
                quote!(#path { #(#names: #reads),* })
            }
            Kind::Tuple => quote!(#path(#(#reads),*)),
            Kind::Unit => quote!(#path),
        }
    }
}

fn options(attrs: &[Attribute]) -> Result<Options> {
    let mut options = Options::default();
    if let Some(attr) = attrs.iter().find(|a| a.path().is_ident("module")) {
        return Err(Error::new_spanned(attr, "the attribute of fields of a module is `tree`: write `#[tree(static)]`"));
    }
    for attr in attrs.iter().filter(|a| a.path().is_ident("tree")) {
        attr.parse_nested_meta(|meta| {
            if meta.path.is_ident("static") {
                options.is_static = true;
                return Ok(());
            }
            if meta.path.is_ident("axis_names") {
                options.axis_names = Some(Punctuated::parse_separated_nonempty(meta.value()?)?);
                return Ok(());
            }
            Err(meta.error("unknown option: write `#[tree(static)]` or `#[tree(axis_names = field)]`"))
        })?;
    }
    Ok(options)
}
