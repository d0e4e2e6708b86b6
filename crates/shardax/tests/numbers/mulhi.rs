//! The high halves of integer products, compared with products of 128 bits.

use shardax::lax;

use super::common::quick::setup;
use super::*;

/// Compares all pairs of these numbers.
macro_rules! compares {
    ($($name:ident: $type:ty;)*) => {$(
        #[test]
        fn $name() -> Result<()> {
            setup();
            let mut numbers = vec![0, 1, 3, <$type>::MAX, <$type>::MIN, <$type>::MAX / 2, <$type>::MAX / 3 + 1];
            numbers.extend((0..9).map(|i| (0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(i + 1)) as $type));
            let x = array(numbers.clone());
            let high = lax::mulhi(x.expand_dims(1), x.expand_dims(0)).to_vec::<$type>()?;
            let want: Vec<$type> = numbers
                .iter()
                .flat_map(|&a| numbers.iter().map(move |&b| ((a as i128).wrapping_mul(b as i128) >> <$type>::BITS) as $type))
                .collect();
            assert_eq!(high, want);
            Ok(())
        }
    )*};
}

compares! {
    mulhi_of_i8: i8;
    mulhi_of_u8: u8;
    mulhi_of_i16: i16;
    mulhi_of_u16: u16;
    mulhi_of_i32: i32;
    mulhi_of_u32: u32;
    mulhi_of_i64: i64;
    mulhi_of_u64: u64;
}

#[test]
fn mulhi_of_floats_is_an_error() {
    setup();
    let message = lax::mulhi(array([1.0f32]), array([2])).check().expect_err("floats").to_string();
    assert!(message.contains("mulhi requires integers"), "{message}");
}
