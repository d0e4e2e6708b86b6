//! Samplers with parameters. `parameter_samplers!` defines them as a table: each body receives a key and parameters that are already
//! converted to the dtype and broadcast to the shape of the result.

macro_rules! parameter_samplers {
    ($($(#[$doc:meta])* $name:ident $name_dtype:ident ($($p:ident),*) $text:literal => $body:expr;)*) => {$(
        $(#[$doc])*
        /// Parameters broadcast to the shape. Float32.
        #[track_caller]
        pub fn $name(key: impl RandomKey, $($p: impl ArrayLike,)* shape: impl IntoShape) -> Array {
            $name_dtype(key, $($p,)* shape, $crate::default_dtype::float())
        }

        $(#[$doc])*
        /// Parameters broadcast to the shape. Fails for a dtype that is not floating point.
        #[track_caller]
        pub fn $name_dtype(
            key: impl RandomKey,
            $($p: impl ArrayLike,)*
            shape: impl IntoShape,
            dtype: DType,
        ) -> Array {
            let key = key.borrow();
            let params: Vec<Array> = vec![$($p.into_array()),*];
            $crate::random::sample($text, key, shape, dtype, |shape| {
                Float::of($text, dtype)?;
                $crate::random::continuous::check_broadcast($text, &shape, &params.iter().collect::<Vec<_>>())?;
                let params = params.iter().map(|p| convert(p, dtype, false));
                let args: Vec<Array> = std::iter::once(key.clone()).chain(params).collect();
                composite1($text, (shape, dtype), &args, |(shape, dtype), args| {
                    let body: fn(&Array, &[Array], &[usize], DType) -> Result<Array> = $body;
                    let params: Vec<Array> = args[1..].iter().map(|p| p.broadcast_to(shape.as_slice())).collect();
                    Ok(vec![body(&args[0], &params, shape, *dtype)?])
                })
            })
        }
    )*};
}

pub(super) use parameter_samplers;
