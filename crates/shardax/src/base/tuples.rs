//! Trait implementations for tuples of up to sixteen, in this crate and in the crates that depend on it.

/// Calls a macro with the types and indices of each tuple: `(A 0) (A 0, B 1) …`.
#[doc(hidden)]
#[macro_export]
macro_rules! __each_tuple {
    ($macro:ident) => {
        $macro! {
            (A 0)
            (A 0, B 1)
            (A 0, B 1, C 2)
            (A 0, B 1, C 2, D 3)
            (A 0, B 1, C 2, D 3, E 4)
            (A 0, B 1, C 2, D 3, E 4, F 5)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14)
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15)
        }
    };
}

pub(crate) use __each_tuple as each;
