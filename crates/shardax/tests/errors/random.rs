//! Random numbers.

use shardax::ErrorKind::{Type, Value};
use shardax::lax;
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    // Arrays that are not keys, several keys at once, and parameters that a distribution does not have.
    t.row("normal: no key", Type, &["normal", "unexpected PRNG key type"], || at!(random::normal(&ones(2), [3])));
    t.row("split: several keys", Value, &["accepts a single key"], || {
        at!(random::split(&random::split(&random::key(0), 2), 2))
    });
    let keys = || random::split(&random::key(0), 2);
    let rejected: &[&'static str] = &["does not accept dtype key<fry>", "random::key_data"];
    t.row("key + key", Type, rejected, move || at!(keys() + keys()));
    t.row("sum of keys", Type, rejected, move || at!(keys().sum(0)));
    t.row("argmax of keys", Type, rejected, move || at!(keys().argmax(0)));
    t.row("sorted keys", Type, rejected, move || at!(keys().sort(0)));
    t.row("key < key", Type, rejected, move || at!(keys().less(keys())));
    t.row("sin of keys", Type, rejected, move || at!(keys().sin()));
    t.row("key matmul", Type, rejected, move || at!(keys().matmul(keys())));
    t.row("keys to float32", Type, rejected, move || at!(keys().astype(DType::F32)));
    t.row("bits of keys", Type, rejected, move || at!(lax::bitcast_convert_type(&keys(), DType::U32)));
    t.row("keys added at", Type, rejected, move || at!(keys().at(0).add(random::key(1))));
    t.row("key in a callback", Type, rejected, || {
        fn printed(key: Array) -> Array {
            at!(shardax::debug_print!("{}", key));
            key
        }
        jit(printed).call(random::key(0))
    });
    t.row("numbers to keys", Type, &["key<fry>", "random::key"], || at!(arange(0..3).astype(DType::Key)));
    t.row("a number among keys", Type, &["key<fry> and", "no implicit promotion"], move || at!(keys() + 1));
    t.row("words among keys", Type, &["key<fry> and uint32", "random::wrap_key_data"], move || {
        at!(concatenate([keys(), random::PRNGKey(0)], 0))
    });
    t.row("key == number", Type, &["key<fry> and", "random::key_data"], move || at!(keys().equal(1)));
    t.row("ones of keys", Type, &["key<fry>", "cannot be filled"], || at!(ones_dtype([2], DType::Key)));
    t.row("host numbers as keys", Type, &["not a random key"], || at!(array_of([1], DType::Key)));
    t.row("keys read as numbers", Type, &["key<fry>[2]", "random::key_data"], move || at!(keys().to_vec::<u32>()))
        .at_once_only();
    t.row("wrap_key_data: floats", Type, &["invalid PRNG key data", "float32[2]"], || {
        at!(random::wrap_key_data(ones([2])))
    });
    t.row("grad with respect to a key", Type, &["grad requires real- or complex-valued inputs", "key<fry>"], || {
        at!(grad(|key: Array| random::normal(key, ())).call(random::key(0)))
    });
    t.row("key: float seed", Type, &["seed must be an integer scalar"], || at!(random::key(0.5f32)));
    t.row("uniform: integers", Type, &["must be a float dtype"], || {
        at!(random::uniform_dtype(&random::key(0), [3], DType::I32, 0.0, 1.0))
    });
    t.row("randint: floats", Type, &["randint bounds must be integers"], || {
        at!(random::randint(&random::key(0), [3], 0, 1.5))
    });
    t.row("normal: negative size", Value, &["not negative", "-1"], || at!(random::normal(&random::key(0), [-1])));
    t.row("normal: more than 63 bits", Value, &["too large"], || at!(random::normal(&random::key(0), [i64::MAX, 4])));
    t.row("bernoulli: integer", Type, &["must have a floating dtype"], || {
        at!(random::bernoulli(&random::key(0), 1, [3]))
    });
    t.row("choice: too many", Value, &["Cannot take a larger sample"], || {
        at!(random::ChoiceOptions::new().replace(false).choice(&random::key(0), 3, [4]))
    });
    t.row("fold_in: negative", Value, &["fold_in", "-1"], || at!(random::fold_in(&random::key(0), -1)));
    t.row("categorical: integers", Type, &["must have a floating dtype"], || {
        at!(random::categorical(&random::key(0), &arange(0..3), 0))
    });
}
