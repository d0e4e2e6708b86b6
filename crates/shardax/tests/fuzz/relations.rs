//! Ways to run a program that must not change what it computes: eagerly or compiled, alone or in a batch, replicated or
//! split, with its
//! intermediate values or recomputing them, from a file or not, and with operands in rare states. The committed
//! programs have answers, so none of this needs JAX.

use std::collections::BTreeMap;

use shardax::config::set_compiler_options;
use shardax::control_flow::map;
use shardax::export::Exported;
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::DimSpec;
use shardax::stages::CompilerOption;

use super::program::Program;
use super::{Case, Failure, committed, known, run_with, states};
use crate::golden_support::quick::{QUICK, one_of};
use crate::golden_support::read::cases;

/// Programs of one piece, which are run as one: in a test, and in a sweep, where they compile quickly.
const AT_ONCE: [usize; 2] = [8, 24];

/// The options that [`QUICK`] changes, as XLA has them.
const USUAL: [(&str, CompilerOption); 4] = [
    ("xla_cpu_use_fusion_emitters", CompilerOption::Bool(true)),
    ("xla_backend_optimization_level", CompilerOption::Int(3)),
    ("xla_llvm_disable_expensive_passes", CompilerOption::Bool(false)),
    ("xla_cpu_parallel_codegen_split_count", CompilerOption::Int(32)),
];

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Eager,
    Compiled,
    /// An entry of a batch of `vmap`.
    Batched,
    /// An entry of a batch over which a loop iterates.
    Looped,
    /// Inside `checkpoint`.
    Recomputed,
    /// Exported, written and read.
    Exported,
    /// With operands split over the devices of a mesh.
    Split,
    /// In a branch of `cond`.
    Conditional,
    /// With operands that refs hold.
    Refs,
    /// With operands split over axes of type `Explicit`, some of size 1.
    Explicit,
    SizeOne,
    /// With operands that are reduced or unreduced over an axis.
    Reduced,
    Unreduced,
    /// Inside of `shard_map`, with operands that are equal on all devices, which their types say or not.
    Manual,
    Varying,
}

pub const WAYS: [Way; 15] = [
    Way::Eager,
    Way::Compiled,
    Way::Batched,
    Way::Looped,
    Way::Recomputed,
    Way::Exported,
    Way::Split,
    Way::Conditional,
    Way::Refs,
    Way::Explicit,
    Way::SizeOne,
    Way::Reduced,
    Way::Unreduced,
    Way::Manual,
    Way::Varying,
];

impl Way {
    /// Returns true if types have shardings, for which programs may be rejected.
    fn is_typed(self) -> bool {
        use Way::*;
        matches!(self, Explicit | SizeOne | Reduced | Unreduced | Manual | Varying)
    }
}

const MESHES: [&[(&str, usize)]; 3] = [&[("a", 2), ("b", 4)], &[("a", 2), ("b", 3)], &[("a", 8)]];

/// Programs that differ in a way, and why.
const DIFFERENT: [(&str, Way, &str); 3] = [
    ("jit_00361", Way::Split, "a product of numbers near both ends, whose order decides between -0 and a number"),
    ("jvp_00598", Way::Split, "a sum of bfloat16 products near 30 that cancel, whose parts are rounded on each device"),
    ("grad_00428", Way::Batched, "XLA multiplies the infinite kernels of other entries by 0, with JAX too"),
];

/// Random numbers that follow from a seed.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % n
    }
}

/// The committed programs for one device whose answers are JAX's.
pub fn programs() -> Vec<Case> {
    let known = known();
    let mut cases = cases(&committed(), "fuzz");
    cases.retain(|case| {
        matches!(case.op.as_str(), "eager" | "jit" | "grad" | "hvp" | "jvp" | "vmap")
            && known.iter().all(|(name, _)| *name != case.name)
    });
    cases
}

/// Runs the programs that these numbers stand for; returns the count of each way, and what differs.
///
/// With `quick` they are compiled quickly, all but eager operations, and programs that differ run once more as users
/// have them:
/// a last bit decides in a few.
pub fn check(
    cases: &[Case],
    pieces: std::ops::Range<usize>,
    quick: bool,
) -> (BTreeMap<String, usize>, Vec<(Way, Failure<'_>)>) {
    let (mut counts, mut failures) = (BTreeMap::new(), Vec::new());
    for piece in pieces {
        let way = WAYS[piece % WAYS.len()];
        let mut random = Random(piece as u64);
        let mut chosen: Vec<Program> = (0..if quick { AT_ONCE[1] } else { AT_ONCE[0] / one_of(2) })
            .map(|_| Program::new(&cases[random.below(cases.len())]))
            .filter(|program| allowed(program, way))
            .collect();
        if way.is_typed() {
            let all = chosen.len();
            chosen.retain(|program| accepts(program, way));
            *counts.entry(format!("{way:?} rejected").to_lowercase()).or_default() += all - chosen.len();
        }
        *counts.entry(format!("{way:?}").to_lowercase()).or_default() += chosen.len();
        let group: Vec<&Program> = chosen.iter().collect();
        let seed = random.0;
        if quick {
            set_compiler_options(if way == Way::Eager { USUAL } else { QUICK });
        }
        let mut found = run(&group, way, seed);
        // The quick options round differently, so only a difference with the usual options counts.
        if quick && !found.is_empty() {
            set_compiler_options(USUAL);
            fn differs(program: &Program, found: &Vec<Failure<'_>>) -> bool {
                found.iter().any(|failure| failure.program.name == program.case.name)
            }
            let again: Vec<&Program> = group.iter().copied().filter(|program| differs(program, &found)).collect();
            found = run(&again, way, seed);
        }
        failures.extend(found.into_iter().map(|failure| (way, failure)));
    }
    (counts, failures)
}

fn run<'a>(group: &[&Program<'a>], way: Way, seed: u64) -> Vec<Failure<'a>> {
    run_with(group, &|group| results(group, way, &mut Random(seed)))
}

fn allowed(program: &Program, way: Way) -> bool {
    if DIFFERENT.iter().any(|(name, other, _)| (*name, *other) == (program.case.name.as_str(), way)) {
        return false;
    }
    match way {
        // An infinite slope times an addend that is zero is NaN, as in JAX.
        Way::Reduced if program.mode != "jit" && has_infinite_results(program) => false,
        Way::Eager | Way::Compiled | Way::Split => true,
        // Tangents have the types of operands.
        _ if way.is_typed() => matches!(program.mode, "jit" | "grad" | "vmap"),
        // Functions that read values while they are traced can only run eagerly.
        _ => program.mode != "eager",
    }
}

fn has_infinite_results(program: &Program) -> bool {
    program.wanted().iter().any(|(_, want, _)| want.scalars().iter().any(|value| value.to_f64().is_infinite()))
}

/// The arguments of a program in the state of a way.
fn typed_arguments(program: &Program, way: Way, mesh: &Mesh) -> Result<Vec<Array>> {
    let mut random = Random(program.case.name.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte)));
    program.arguments().iter().map(|x| states::place(x, way, mesh, &mut random)).collect()
}

/// Returns true unless the program is rejected for the shardings of this way.
fn accepts(program: &Program, way: Way) -> bool {
    let mesh = states::mesh(way).expect("there are eight devices");
    let _mesh = set_mesh(&mesh).expect("no trace");
    let arguments = typed_arguments(program, way, &mesh).expect("each operand can be placed");
    states::accepts(way, &|xs| program.run(&xs), arguments)
}

/// The results of these programs as one.
fn results(group: &[&Program], way: Way, random: &mut Random) -> Result<Vec<Array>> {
    let arguments: Vec<Vec<Array>> = group.iter().map(|program| program.arguments()).collect();
    let all = |xs: Vec<Array>| -> Result<Vec<Array>> {
        let (mut outs, mut at) = (Vec::new(), 0);
        for (program, args) in group.iter().zip(&arguments) {
            let results = program.run_recomputed(&xs[at..at + args.len()], way == Way::Recomputed)?;
            at += args.len();
            outs.extend(program.wanted().into_iter().map(|(k, ..)| results[k].clone()));
        }
        Ok(outs)
    };
    let inputs = arguments.concat();
    if way.is_typed() {
        let mesh = states::mesh(way)?;
        let _mesh = set_mesh(&mesh)?;
        let placed = group.iter().map(|program| typed_arguments(program, way, &mesh)).collect::<Result<Vec<_>>>()?;
        return jit(|xs: Vec<Array>| states::run(way, &all, xs)).call(placed.concat());
    }
    match way {
        Way::Eager => all(inputs),
        Way::Compiled | Way::Recomputed => jit(all).call(inputs),
        Way::Batched | Way::Looped => {
            // The arguments are one entry of a batch; the other entries are different.
            let count = 2 + random.below(3);
            let entry = random.below(count);
            let batch: Vec<Array> = inputs.iter().map(|x| batch(x, count, entry)).collect();
            let outs = match way {
                Way::Batched => jit(vmap(all)).call(batch)?,
                _ => jit(|xs: Vec<Array>| map(&all, xs)).call(batch)?,
            };
            Ok(outs.iter().map(|y| y.get(entry)).collect())
        }
        Way::Exported => {
            let bytes = shardax::export::export(jit(all), inputs.clone())?.serialize()?;
            Exported::<(Vec<Array>,), Vec<Array>>::deserialize(&bytes)?.call(inputs)
        }
        Way::Split => {
            let mesh = make_mesh(MESHES[random.below(MESHES.len())].iter().copied())?.auto();
            let split = inputs.iter().map(|x| split(x, &mesh, random)).collect::<Result<Vec<_>>>()?;
            jit(all).call(split)
        }
        Way::Conditional => jit(|xs: Vec<Array>| cond(array(true), &all, &all, xs)).call(inputs),
        Way::Refs => {
            let refs = inputs.iter().map(new_ref).collect::<Result<Vec<_>>>()?;
            jit(|_: Array| all(refs.iter().map(|r| r.get()).collect())).call(array(0))
        }
        Way::Explicit | Way::SizeOne | Way::Reduced | Way::Unreduced | Way::Manual | Way::Varying => unreachable!(),
    }
}

/// A batch with `x` as this entry; the others have its elements, moved.
fn batch(x: &Array, count: usize, entry: usize) -> Array {
    let moved = |i: usize| {
        if i == entry || x.size() < 2 {
            x.clone()
        } else {
            shardax::numpy::roll(x.reshape([x.size()]), i as i32 + 1, 0).reshape(x.shape())
        }
    };
    shardax::numpy::stack((0..count).map(moved).collect::<Vec<_>>(), 0)
}

/// The array over the mesh: each axis splits a dimension at random, where it divides one.
pub fn split(x: &Array, mesh: &Mesh, random: &mut Random) -> Result<Array> {
    let mut dims: Vec<Vec<AxisName>> = vec![Vec::new(); x.ndim()];
    let mut parts = vec![1; x.ndim()];
    for &(name, size) in mesh.axes() {
        let fits = |d: &usize| x.shape()[*d] > 0 && x.shape()[*d].is_multiple_of(parts[*d] * size);
        let fitting: Vec<usize> = (0..x.ndim()).filter(fits).collect();
        if !fitting.is_empty() {
            let d = fitting[random.below(fitting.len())];
            dims[d].push(name);
            parts[d] *= size;
        }
    }
    device_put(x, &NamedSharding::new(mesh, PartitionSpec::new(dims.into_iter().map(DimSpec::from_iter))))
}
