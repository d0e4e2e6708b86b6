//! Cache miss reports: the differences from earlier calls, and warnings about plain numbers that change often.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use super::dispatch::{ArgKey, Key, hash_leaf};
use crate::core::array::Array;
use crate::core::tree::{Flat, TreeDef};
use crate::defaults::Defaults;
use crate::sharding::context::get_mesh;
use crate::sharding::device::{chosen_device, is_chosen};
use crate::sharding::{Mesh, Sharding};
use crate::source;
use crate::warning;

/// The distance between two calls, the aspect in which they differ, and the differences.
pub(super) type Difference = (usize, &'static str, Vec<String>);

/// Formats the message for a cache miss, in JAX's words, from the differences to earlier calls.
pub(super) fn explain(name: &str, differences: impl Iterator<Item = Difference>) -> String {
    let line = source::line().map_or("an unknown line".to_owned(), |line| line.to_string());
    match differences.min_by_key(|(rank, _, list)| (*rank, list.len())) {
        None => format!("TRACING CACHE MISS at {line}:\n  never seen function:\n    {name}"),
        Some((_, kind, list)) => format!(
            "TRACING CACHE MISS at {line}:\n  for {name}\n  all previously seen cache keys differ. For the closest previous key:\n  {kind}:\n  * {}",
            list.join("\n  * ")
        ),
    }
}

impl Key {
    /// Lists the arguments that `difference` describes a difference for.
    fn different_arguments(&self, flat: &Flat, difference: impl Fn(&ArgKey, &Array) -> Option<String>) -> Vec<String> {
        let pairs = self.args.iter().zip(&flat.leaves).enumerate();
        let texts = pairs.filter_map(|(i, (key, leaf))| {
            Some(format!("at argument{}, {}", flat.def.path(i), difference(key, leaf)?))
        });
        texts.collect()
    }

    /// Compares these arguments with the arguments that the entry was compiled for.
    pub(super) fn differences(&self, flat: &Flat) -> Difference {
        // Only the first kind of difference is reported, because the later ones often follow from it.
        if self.def != flat.def {
            if hash_without_numbers(&self.def) != hash_without_numbers(&flat.def) {
                return (4, "different input pytree", vec![flat.def.difference(&self.def)]);
            }
            let numbers = flat.def.different_numbers(&self.def).into_iter();
            let texts =
                numbers.map(|(path, now, before)| format!("at argument{path}, now {now:?} and before {before:?}"));
            return (2, "different plain numbers", texts.collect());
        }
        let types = self.different_arguments(flat, |key, leaf| {
            let now = leaf.aval();
            (now != key.aval).then(|| format!("now {now} and before {}", key.aval))
        });
        if !types.is_empty() {
            return (3, "different input types", types);
        }
        let places = self.different_arguments(flat, |key, leaf| {
            (!key.matches(leaf)).then(|| {
                let now = describe_place(leaf.concrete_ref().map(|c| &c.sharding), leaf.committed());
                format!("now {now} and before {}", describe_place(key.sharding.as_ref(), key.committed))
            })
        });
        if !places.is_empty() {
            return (1, "different input shardings", places);
        }

        let text = match get_mesh() == self.mesh {
            true if !is_chosen(self.device.as_ref()) => {
                let (now, before) = (or_none(chosen_device().as_ref()), or_none(self.device.as_ref()));
                format!("the default device, now {now} and before {before}")
            }
            true => Defaults::current().difference(self.defaults).unwrap_or_default(),
            false => {
                format!(
                    "the context mesh, now {} and before {}",
                    or_none(get_mesh().as_ref()),
                    or_none(self.mesh.as_ref())
                )
            }
        };
        (0, "Tracing context doesn't match", vec![text])
    }
}

fn hash_without_numbers(def: &TreeDef) -> u64 {
    let mut hasher = DefaultHasher::new();
    def.hash_without_numbers(&mut hasher);
    hasher.finish()
}

fn or_none<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "none".to_owned(), T::to_string)
}

fn describe_place(sharding: Option<&Sharding>, committed: bool) -> String {
    match sharding {
        Some(sharding) => format!("{sharding}{}", if committed { "" } else { ", uncommitted" }),
        None => "a plain number".to_owned(),
    }
}

/// The number of compilations that differ only in plain numbers at which a warning is issued.
const COMPILATIONS_TO_WARN: usize = 8;

/// The number of compilations for arguments that differ only in plain numbers, by the hash of the rest.
#[derive(Default)]
pub(super) struct Numbers(Mutex<HashMap<u64, (usize, TreeDef)>>);

impl Numbers {
    /// Records a compilation for these arguments, and warns at the eighth that differs only in plain numbers.
    pub(super) fn compiled(&self, name: &str, flat: &Flat, mesh: Option<&Mesh>) {
        if !flat.def.has_numbers() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        flat.def.hash_without_numbers(&mut hasher);
        flat.leaves.iter().for_each(|leaf| hash_leaf(leaf, &mut hasher));
        mesh.hash(&mut hasher);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= 1024 {
            // Other arguments differ too, so this is not a loop over numbers.
            counts.clear();
        }
        let (count, before) = counts.entry(hasher.finish()).or_insert_with(|| (0, TreeDef::default()));
        *count += 1;
        let before = std::mem::replace(before, flat.def.clone());
        if *count != COMPILATIONS_TO_WARN {
            return;
        }
        drop(counts);
        let numbers = flat.def.different_numbers(&before).into_iter();
        let list: Vec<String> =
            numbers.map(|(path, now, before)| format!("argument{path} was {before:?} and is now {now:?}")).collect();
        warning::warn(
            &format!(
                "{name} was compiled {COMPILATIONS_TO_WARN} times for arguments that differ only in plain numbers: {}. A plain number is part of the program, which is compiled again for each value.",
                list.join(", ")
            ),
            "declare the parameter that changes as an `Array`; it is then data, even if you pass a plain number for it",
        );
    }
}
