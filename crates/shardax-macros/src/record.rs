//! The derive of `Record`: a struct whose fields are the arrays of an example.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Attribute, Data, DataStruct, DeriveInput, Error, Expr, Fields, Result, parse_quote};

/// A field, its name in the example, and the value of `#[record(shape = …)]`.
struct Field<'a> {
    ident: &'a syn::Ident,
    name: String,
    shape: Option<Expr>,
}

pub fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = fields(input)?;
    let name = &input.ident;
    let text = name.to_string();
    let mut generics = input.generics.clone();
    for param in generics.type_params_mut() {
        param.bounds.push(parse_quote!(::shardax_train::data::RecordField));
    }
    let (params, _, clause) = generics.split_for_impl();
    let (_, types, _) = input.generics.split_for_impl();
    let names = fields.iter().map(|field| &field.name);
    // The shape is passed on as an expression, so that it may be a constant of the caller's module.
    let writes = fields.iter().map(|Field { ident, name, shape }| {
        let shape = optional_shape(shape.as_ref());
        quote!(example.insert(::std::string::String::from(#name), field_to_host(#text, #name, &self.#ident, #shape)?);)
    });
    let reads = fields.iter().map(|Field { ident, name, shape }| {
        let shape = optional_shape(shape.as_ref());
        quote!(#ident: field_from_host(#text, #name, &mut example, #shape)?)
    });
    Ok(quote! {
        impl #params ::shardax_train::data::Record for #name #types #clause {
            #[track_caller]
            fn to_example(&self) -> ::shardax::Result<::shardax_train::data::Example> {
                use ::shardax_train::data::__derive::field_to_host;
                let mut example = ::shardax_train::data::Example::new();
                #(#writes)*
                ::core::result::Result::Ok(example)
            }
            #[track_caller]
            fn from_example(mut example: ::shardax_train::data::Example) -> ::shardax::Result<Self> {
                use ::shardax_train::data::__derive::{check_names, field_from_host};
                check_names(#text, &[#(#names),*], &example)?;
                ::core::result::Result::Ok(#name { #(#reads),* })
            }
        }
    })
}

fn fields(input: &DeriveInput) -> Result<Vec<Field<'_>>> {
    let Data::Struct(DataStruct { fields: Fields::Named(fields), .. }) = &input.data else {
        let message = "derive `Record` for a struct with named fields, because the arrays of an example have names";
        return Err(Error::new_spanned(&input.ident, message));
    };
    let named = fields.named.iter().filter_map(|field| Some((field.ident.as_ref()?, field)));
    named
        .map(|(ident, field)| Ok(Field { ident, name: ident.unraw().to_string(), shape: shape(&field.attrs)? }))
        .collect()
}

fn optional_shape(shape: Option<&Expr>) -> TokenStream {
    match shape {
        Some(shape) => quote!(::core::option::Option::Some(&#shape)),
        None => quote!(::core::option::Option::None),
    }
}

/// The value of `#[record(shape = …)]`.
fn shape(attrs: &[Attribute]) -> Result<Option<Expr>> {
    let mut shape = None;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("record")) {
        attr.parse_nested_meta(|meta| {
            if meta.path.is_ident("shape") {
                shape = Some(meta.value()?.parse()?);
                return Ok(());
            }
            Err(meta
                .error("unknown option: write the shape of the field's elements, such as `#[record(shape = [48, 6])]`"))
        })?;
    }
    Ok(shape)
}
