//! Random numbers.

use shardax::ErrorKind::{Type, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    t.row("normal: no key", Type, &["normal", "unexpected PRNG key type"], || at!(random::normal(&ones(2), [3])));
    t.row("split: several keys", Value, &["accepts a single key"], || {
        at!(random::split(&random::split(&random::key(0), 2), 2))
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
        at!(random::ChoiceOptions::default().replace(false).choice(&random::key(0), 3, [4]))
    });
    t.row("fold_in: negative", Value, &["fold_in", "-1"], || at!(random::fold_in(&random::key(0), -1)));
    t.row("categorical: integers", Type, &["must have a floating dtype"], || {
        at!(random::categorical(&random::key(0), &arange(0..3), 0))
    });
}
