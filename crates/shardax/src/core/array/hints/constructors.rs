//! Constructors of arrays and devices of other libraries.

use super::Operator;
use crate::core::array::Array;
use crate::sharding::Device;

/// Defines constructors of other libraries, each with the suggestion of what to write instead. The traits have a function,
/// because a constructor has no array that it could return.
macro_rules! constructors {
    ($($name:ident $trait:ident $instead:literal;)*) => {
        $(
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = $instead, label = "not a constructor of arrays")]
            pub trait $trait<T> {
                fn construct() -> Array;
            }
        )*

        #[doc(hidden)]
        #[allow(clippy::new_ret_no_self)]
        impl Array {
            $(
                pub fn $name<T>(_: T) -> Array
                where
                    Operator: $trait<T>,
                {
                    <Operator as $trait<T>>::construct()
                }
            )*
        }
    };
}

constructors! {
    zeros Zeros "`Array` has no constructor `zeros`: write `zeros([2, 3])`";
    ones Ones "`Array` has no constructor `ones`: write `ones([2, 3])`";
    eye Eye "`Array` has no constructor `eye`: write `eye(3)`";
    arange Arange "`Array` has no constructor `arange`: write `arange(0..10)`";
    rand Rand "`Array` has no constructor `rand`: write `random::uniform(&key, [2, 3])` with a key, `random::key(0)`";
    randn Randn "`Array` has no constructor `randn`: write `random::normal(&key, [2, 3])` with a key, `random::key(0)`";
    new New "`Array` has no constructor `new`: write `array([1.0, 2.0])`, or `Array::from_slice(&numbers, &[2, 3])?` with a shape";
    load Load "`Array` has no constructor `load`: write `npy(path)?.to_array()?` of `shardax_train::data`, or `checkpoint::load` for a checkpoint";
    from_data FromData "`Array` has no constructor `from_data`: write `array([1.0, 2.0])`, or `Array::from_slice(&numbers, &[2, 3])?` with a shape";
}

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a `Device` is one of the list of `devices()?`",
    label = "not a constructor of devices",
    note = "write `let device = &devices()?[0]`; the platform is set by the environment variable SHARDAX_PLATFORM, or by `config::set_platform`"
)]
pub trait Devices<T> {
    fn construct() -> Device;
}

macro_rules! devices {
    ($($name:ident)*) => {
        #[doc(hidden)]
        impl Device {
            $(
                pub fn $name<T>(_: T) -> Device
                where
                    Operator: Devices<T>,
                {
                    <Operator as Devices<T>>::construct()
                }
            )*
        }
    };
}

devices! { cuda new_cuda cuda_if_available gpu }
