//! Materialization on CPU: finds the values to compute once, because fusion would otherwise recompute them in each loop
//! that uses them.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes elementwise operations inside the loops of their users, again in each of them.
//! This saves memory traffic if there are few users, or little to read. But a sum that grows from layer to layer, such
//! as the residual stream of a transformer and its cotangent, is then read from its beginning in every loop, so
//! traffic, instructions and compile time grow with the square of the depth (`docs/plugin.md`). Such a value is
//! materialized: computed once. Checked by `loops_of_sums_do_not_grow_with_the_depth`.
//!
//! XLA's compile time also grows faster than the number of operands of one loop (LLVM compares each pair of them), and
//! with the number of loops times the operations that each of them computes again. Therefore loops are bounded for
//! values of any size. Checked by `compiled_loops_are_bounded`.
//!
//! A loop that adds up several pads of a value computes the value once for each of them, because each pad reads other positions.
//! Checked by `places_of_maxima_are_computed_once`.
//!
//! Loops of gathers, and of reversed reshapes, compute one element after the other, so values that they read are computed before, in vectors.
//! Checked by `operands_of_loops_without_vectors_are_computed_before`.

use smallvec::{SmallVec, smallvec};

use crate::core::program::{Atom, Eqn, Program, Var};
use crate::dtype::DType;
use crate::ops::primitive::slices::Pad;
use crate::ops::primitive::threefry::Threefry2x32;

/// Smaller values cost less than a separate loop.
const MIN_ELEMENTS: usize = 4096;

/// The maximum number of loops and operands that are counted for a value.
const MAX_TRACKED: usize = 16;

/// The maximum number of operands of a loop.
const MAX_LOOP_OPERANDS: usize = 64;

/// The maximum number of operations that the loops of a value compute again: loops times operations. At most
/// [`MAX_COUNTED`] loops and [`MAX_COUNTED`] equations are counted.
const MAX_REPEATED_OPERATIONS: usize = 512;
const MAX_COUNTED: usize = 64;

/// The maximum number of operations that one loop computes again at other positions: pads times operations. The gradient of a windowed
/// maximum pads the cotangents of each place in the window, and adds them up in one loop. For each of them, the loop would find the place of
/// the maximum again.
const MAX_OPERATIONS_OF_PADS: usize = 128;

/// The fused functions that become more than 30 operations, often about [`OPERATIONS_OF_A_SERIES`], although they are one equation.
/// A training step has one: the bias correction of Adam is an `expm1`, which the loops of all parameters would compute again.
const SERIES: [&str; 8] = ["expm1", "lgamma", "digamma", "bessel_i1e", "polygamma", "zeta", "erfc", "erf_inv"];
const OPERATIONS_OF_A_SERIES: usize = 50;

/// The operations of a block of random bits.
const OPERATIONS_OF_THREEFRY: usize = 100;

/// The minimum number of operations by which indices are computed, if they are computed before the loop that reads elements at them.
const MIN_OPERATIONS_OF_INDICES: usize = 32;

/// A small ordered set of the program's values or equations. Most have a few items, and every value has several sets.
#[derive(Clone, Default)]
struct VarSet<const MAX: usize>(SmallVec<[u32; 6]>);

impl<const MAX: usize> VarSet<MAX> {
    fn of(item: u32) -> Self {
        VarSet(smallvec![item])
    }

    fn insert(&mut self, item: u32) {
        if let Err(at) = self.0.binary_search(&item)
            && self.0.len() < MAX
        {
            self.0.insert(at, item);
        }
    }

    /// Inserts the items of `other` in their order, so that a full set keeps its items.
    fn extend(&mut self, other: &VarSet<MAX>) {
        let Some(first) = other.0.first() else { return };
        match self.0.last() {
            Some(last) if last >= first && self.0.len() < MAX => other.0.iter().for_each(|&item| self.insert(item)),
            // All items come after the items of this set.
            _ => self.0.extend(other.0.iter().copied().take(MAX - self.0.len())),
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Marks the values of the program to materialize.
pub(in crate::backend) fn materialized(program: &Program) -> Vec<bool> {
    let mut kept = vec![false; program.avals.len()];
    if is_one_block(program) {
        return kept;
    }
    let mut uses = vec![0u32; program.avals.len()];
    program.eqns.iter().flat_map(operands).for_each(|v| uses[v.index()] += 1);
    let mut outputs = program.eqns.iter().flat_map(|eqn| &eqn.outputs);
    if outputs.any(|v| program.avals[v.index()].size() >= MIN_ELEMENTS) {
        // A materialized value reduces the loops of earlier values and the operands of later ones, so a second pass
        // uses the result of the first.
        for _ in 0..2 {
            let users = Users::of(program, &kept);
            kept = keep(program, &users, &uses);
        }
    }
    keep_operands_of_slow_loops(program, &mut kept);
    bound_operands(program, &mut kept);
    bound_repetition(program, &uses, &mut kept);
    kept
}

/// Returns `true` for the operations of a cipher's block. Its two words are read by the same loops, which would otherwise be two for
/// the rules of this file.
fn is_one_block(program: &Program) -> bool {
    program.outputs.len() == 2 && program.avals.iter().all(|aval| aval.dtype == DType::U32)
}

/// Materializes values that loops without vectors would compute: the indices of gathers, if they are computed by many operations as random
/// numbers are, and the operands of reversals that are computed with other dimensions.
fn keep_operands_of_slow_loops(program: &Program, kept: &mut [bool]) {
    // The number of operations by which a loop computes each value.
    let mut operations = vec![0; program.avals.len()];
    for eqn in &program.eqns {
        let slow_operand = match eqn.primitive.name() {
            "gather" => operands(eqn).nth(1).filter(|v| operations[v.index()] >= MIN_OPERATIONS_OF_INDICES),
            "rev" => operands(eqn).next().filter(|v| operations[v.index()] > 0 && is_reshaped(program, *v)),
            _ => None,
        };
        if let Some(v) = slow_operand.filter(|v| program.avals[v.index()].size() >= MIN_ELEMENTS) {
            kept[v.index()] = true;
            operations[v.index()] = 0;
        }
        let own_operations = match eqn.primitive.name() {
            _ if is_cipher(eqn) => OPERATIONS_OF_THREEFRY,
            "reshape" => 0,
            _ if eqn.primitive.is_fused() => 1,
            _ => continue,
        };
        let sum = operands(eqn).fold(own_operations, |sum: usize, v| sum.saturating_add(operations[v.index()]));
        eqn.outputs.iter().filter(|out| !kept[out.index()]).for_each(|out| operations[out.index()] = sum);
    }
}

/// Returns `true` for the result of a reshape that changes more than dimensions of size 1.
fn is_reshaped(program: &Program, v: Var) -> bool {
    let Some(eqn) = program.eqns.iter().find(|eqn| eqn.outputs.contains(&v)) else { return false };
    let sizes = |v: Var| program.avals[v.index()].shape.iter().copied().filter(|size| *size != 1);
    eqn.primitive.name() == "reshape" && operands(eqn).any(|operand| !sizes(operand).eq(sizes(v)))
}

/// Materializes values so that no loop has more than [`MAX_LOOP_OPERANDS`].
fn bound_operands(program: &Program, kept: &mut [bool]) {
    let is_short = program.inputs.len() + program.eqns.len() <= MAX_LOOP_OPERANDS;
    if is_short {
        return;
    }
    // The values in memory that each value is computed from.
    let mut sources: Vec<VarSet<MAX_LOOP_OPERANDS>> = (0..program.avals.len()).map(|v| VarSet::of(v as u32)).collect();
    for eqn in &program.eqns {
        let Some(out) = fused(eqn).filter(|out| !kept[*out]) else { continue };
        let mut all = VarSet::default();
        operands(eqn).for_each(|v| all.extend(&sources[v.index()]));
        if all.len() < MAX_LOOP_OPERANDS { sources[out] = all } else { kept[out] = true }
    }
}

/// Materializes values so that their loops compute no more than [`MAX_REPEATED_OPERATIONS`] again.
fn bound_repetition(program: &Program, uses: &[u32], kept: &mut [bool]) {
    let is_short = program.outputs.len() + program.eqns.len() <= MAX_REPEATED_OPERATIONS / MAX_COUNTED;
    if is_short {
        return;
    }
    let Users { loops, pads, .. } = Users::<MAX_COUNTED>::of(program, kept);
    let mut operations = vec![1; program.avals.len()];
    for eqn in program.eqns.iter().filter(|eqn| SERIES.contains(&eqn.primitive.name())) {
        eqn.outputs.iter().for_each(|out| operations[out.index()] = OPERATIONS_OF_A_SERIES);
    }
    // The equations that a loop computes for each value.
    let mut computed: Vec<VarSet<MAX_COUNTED>> = vec![VarSet::default(); program.avals.len()];
    for eqn in &program.eqns {
        let Some(out) = fused(eqn).filter(|out| !kept[*out]) else { continue };
        let mut all = VarSet::of(out as u32);
        operands(eqn).for_each(|v| all.extend(&computed[v.index()]));
        let repeated: usize = all.0.iter().map(|&equation| operations[equation as usize]).sum();
        let is_padded_again =
            pads[out].len() * repeated >= MAX_OPERATIONS_OF_PADS && program.avals[out].size() >= MIN_ELEMENTS;
        if uses[out] >= 2 && (is_padded_again || loops[out].len() * repeated >= MAX_REPEATED_OPERATIONS) {
            kept[out] = true
        } else {
            computed[out] = all
        }
    }
}

pub(super) fn operands(eqn: &Eqn) -> impl Iterator<Item = Var> {
    eqn.inputs.iter().filter_map(|atom| match atom {
        Atom::Var(v) => Some(*v),
        Atom::Literal { .. } => None,
    })
}

/// Returns `true` for the cipher of random bits, which the compiler fuses, although it has two results.
fn is_cipher(eqn: &Eqn) -> bool {
    eqn.primitive.as_any().is::<Threefry2x32>()
}

/// Returns the result of an equation that is fused into the loops of its users.
fn fused(eqn: &Eqn) -> Option<usize> {
    match eqn.outputs.as_slice() {
        [out] if eqn.primitive.is_fused() => Some(out.index()),
        _ => None,
    }
}

/// Returns `true` for a pad: its loop reads the operand at other positions.
fn moves_positions(eqn: &Eqn) -> bool {
    eqn.primitive.as_any().is::<Pad>()
}

fn moves(eqn: &Eqn) -> bool {
    matches!(eqn.primitive.name(), "reshape" | "transpose")
}

/// Returns `true` if this matmul's operand `v` is a matrix, and the other a vector.
fn is_matrix(program: &Program, eqn: &Eqn, v: Var) -> bool {
    let [size, out_size] = [v, eqn.outputs[0]].map(|v| program.avals[v.index()].size());
    operands(eqn).any(|other| {
        let other_size = program.avals[other.index()].size();
        other != v && other_size > 1 && size % other_size == 0 && size / other_size == out_size
    })
}

/// The users of each value.
struct Users<const MAX: usize> {
    /// The loops that compute the value: loops of equations, and of the program's results.
    loops: Vec<VarSet<MAX>>,
    /// The pads that are computed from the value in these loops.
    pads: Vec<VarSet<MAX>>,
    /// `true` if it is an operand of a matmul, which needs it in memory.
    multiplied: Vec<bool>,
    /// `true` if the matmul is with a vector. XLA then computes the operand in the matmul's loop, unless it is
    /// materialized.
    by_vector: Vec<bool>,
}

impl<const MAX: usize> Users<MAX> {
    fn of(program: &Program, kept: &[bool]) -> Self {
        let mut loops = vec![VarSet::default(); program.avals.len()];
        let mut pads: Vec<VarSet<MAX>> = vec![VarSet::default(); program.avals.len()];
        let mut multiplied = vec![false; program.avals.len()];
        let mut by_vector = vec![false; program.avals.len()];
        let end = program.eqns.len() as u32;
        for (i, atom) in program.outputs.iter().enumerate() {
            if let Atom::Var(v) = atom {
                loops[v.index()].insert(end + i as u32);
            }
        }
        for (i, eqn) in program.eqns.iter().enumerate().rev() {
            let name = eqn.primitive.name();
            let through = fused(eqn).filter(|out| !kept[*out]);
            let inside = through.map_or_else(|| VarSet::of(i as u32), |out| loops[out].clone());
            let padded = match through {
                Some(_) if moves_positions(eqn) => VarSet::of(i as u32),
                Some(out) => pads[out].clone(),
                None => VarSet::default(),
            };
            let product = match fused(eqn) {
                // Matmuls read other orders of the dimensions directly.
                Some(out) => multiplied[out] && moves(eqn),
                None => name == "dot_general" || name == "conv_general_dilated",
            };
            let moved = fused(eqn).is_some_and(|out| by_vector[out] && moves(eqn));
            for v in operands(eqn) {
                loops[v.index()].extend(&inside);
                pads[v.index()].extend(&padded);
                multiplied[v.index()] |= product;
                by_vector[v.index()] |= moved || (name == "dot_general" && is_matrix(program, eqn, v));
            }
        }
        Users { loops, pads, multiplied, by_vector }
    }
}

fn keep(program: &Program, users: &Users<MAX_TRACKED>, uses: &[u32]) -> Vec<bool> {
    let mut kept = vec![false; program.avals.len()];
    // The values in memory that each value is computed from.
    let mut reads: Vec<VarSet<MAX_TRACKED>> = (0..program.avals.len()).map(|v| VarSet::of(v as u32)).collect();
    for eqn in &program.eqns {
        let Some(out) = fused(eqn) else { continue };
        let size = program.avals[out].size();
        let mut all = VarSet::default();
        for v in operands(eqn) {
            // A value that is small compared with the result stays in the processor's caches.
            for &read in &reads[v.index()].0 {
                if program.avals[read as usize].size() * 2 >= size {
                    all.insert(read);
                }
            }
        }
        let (loops, operands) = (users.loops[out].len(), all.len());
        // Without materialization, each loop reads each operand. With it, the operands are read once, and the value is
        // written once and read by each loop. If the value must be in memory anyway, the matmul's loop does not count.
        let spares =
            if users.multiplied[out] { loops >= 2 && operands >= 2 } else { loops * operands > operands + 1 + loops };
        // A matmul reads a transposed operand directly.
        let needed = users.by_vector[out] && eqn.primitive.name() != "transpose";
        if size >= MIN_ELEMENTS && (needed || uses[out] >= 2 && spares) {
            kept[out] = true;
        } else {
            reads[out] = all;
        }
    }
    kept
}
