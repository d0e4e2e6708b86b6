//! Rewriting of a computation: calls in place of its collectives.

use std::collections::{BTreeSet, HashMap};

use super::super::wire::Wire;
use super::context::{Context, group_attributes, list};
use super::proto::*;
use crate::error::Result;

/// Collectives that have a host function.
pub(super) const SUPPORTED_COLLECTIVES: &[&str] =
    &["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"];
/// Communicating instructions that are not supported.
const UNSUPPORTED: &[&str] = &["infeed", "outfeed", "send-done", "recv-done", "async-start", "partition-id-start"];

/// The rewriting of one computation.
pub(super) struct Rewrite<'a, 'c> {
    context: &'c mut Context<'a>,
    id: i64,
    /// The low half of the next instruction id.
    next_id: i64,
    out: Vec<Vec<u8>>,
    /// The new instruction for each replaced one.
    replaced: HashMap<i64, i64>,
    shapes: HashMap<i64, Shape>,
    /// A value that depends on the last call.
    order: Option<i64>,
}

impl<'a, 'c> Rewrite<'a, 'c> {
    pub(super) fn run(mut computation: Computation<'_>, context: &'c mut Context<'a>) -> Result<Vec<u8>> {
        const LOW: i64 = 0xffff_ffff;
        let next_id = computation.instructions.iter().map(|i| i.id & LOW).max().unwrap_or(0) + 1;
        let shapes = computation.instructions.iter().map(|i| (i.id, i.shape.clone())).collect();
        let mut rewrite = Rewrite {
            context,
            id: computation.id,
            next_id,
            out: Vec::new(),
            replaced: HashMap::new(),
            shapes,
            order: None,
        };
        rewrite.schedule(std::mem::take(&mut computation.instructions))?;
        let root = rewrite.current(computation.root);
        computation.wire.set_int(computation::ROOT, root);
        let out = rewrite.out;
        out.into_iter().for_each(|bytes| computation.wire.push_bytes(computation::INSTRUCTIONS, bytes));
        Ok(computation.wire.encode())
    }

    /// Visits the instructions after their operands: all-reduces as late as possible, so that many become one call,
    /// other calls in the order of the program.
    fn schedule(&mut self, instructions: Vec<Instruction<'_>>) -> Result<()> {
        // Counts the operands that each instruction waits for.
        let places: HashMap<i64, usize> = instructions.iter().enumerate().map(|(place, i)| (i.id, place)).collect();
        let mut users = vec![Vec::new(); instructions.len()];
        let mut missing = vec![0usize; instructions.len()];
        for (place, i) in instructions.iter().enumerate() {
            for id in i.operands.iter().chain(&i.control) {
                let &operand =
                    places.get(id).ok_or_else(|| unexpected_program("uses an instruction that it does not have"))?;
                users[operand].push(place);
                missing[place] += 1;
            }
        }
        let (mut plain, mut reductions, mut others) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut ready: Vec<usize> = (0..instructions.len()).filter(|&place| missing[place] == 0).collect();
        let mut done = 0;
        loop {
            // Sorts the instructions whose operands are complete into three queues. The sets are ordered, so that every
            // process chooses the same order.
            for place in ready.drain(..) {
                let i = &instructions[place];
                let communicates =
                    i.is_control_flow() && i.calls.iter().any(|id| self.context.communicating.contains(id));
                let queue = match i.opcode.as_str() {
                    "all-reduce" => &mut reductions,
                    opcode if communicates || SUPPORTED_COLLECTIVES.contains(&opcode) => &mut others,
                    _ => &mut plain,
                };
                queue.insert(place);
            }
            // All-reduces wait until nothing else is ready, so that as many as possible become one call.
            let finished: Vec<usize> = if let Some(place) = plain.pop_first() {
                self.plain(&instructions[place])?;
                vec![place]
            } else if !reductions.is_empty() {
                let places: Vec<usize> = std::mem::take(&mut reductions).into_iter().collect();
                self.all_reduces(&places.iter().map(|&place| &instructions[place]).collect::<Vec<_>>())?;
                places
            } else if let Some(place) = others.pop_first() {
                self.exchange(&instructions[place])?;
                vec![place]
            } else {
                break;
            };
            done += finished.len();
            for &user in finished.iter().flat_map(|&place| &users[place]) {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(user);
                }
            }
        }
        if done < instructions.len() {
            return Err(unexpected_program("has instructions that use each other"));
        }
        Ok(())
    }

    /// The instruction that now computes the value of `id`.
    fn current(&self, id: i64) -> i64 {
        self.replaced.get(&id).copied().unwrap_or(id)
    }

    fn push(&mut self, opcode: &str, shape: Shape, operands: &[i64], fill: impl FnOnce(&mut Wire<'_>)) -> i64 {
        let id = self.id << 32 | self.next_id;
        self.next_id += 1;
        self.context.new_instructions += 1;
        let mut wire = Wire::default();
        wire.push_bytes(instruction::NAME, format!("{opcode}.local.{}", self.context.new_instructions));
        wire.push_bytes(instruction::OPCODE, opcode);
        wire.push_bytes(instruction::SHAPE, shape.encode());
        fill(&mut wire);
        wire.push_int(instruction::ID, id);
        wire.set_ints(instruction::OPERANDS, operands);
        self.out.push(wire.encode());
        self.shapes.insert(id, shape);
        id
    }

    fn element(&mut self, tuple: i64, index: usize, shape: Shape) -> i64 {
        self.push("get-tuple-element", shape, &[tuple], |wire| wire.push_int(instruction::TUPLE_INDEX, index as i64))
    }

    fn reshape(&mut self, x: i64, shape: Shape) -> i64 {
        self.push("reshape", shape, &[x], |_| ())
    }

    fn transpose(&mut self, x: i64, from: &Shape, permutation: &[usize]) -> i64 {
        if permutation.is_sorted() {
            return x;
        }
        let dims: Vec<i64> = permutation.iter().map(|&d| from.dims[d]).collect();
        let permutation: Vec<i64> = permutation.iter().map(|&d| d as i64).collect();
        self.push("transpose", Shape::array(from.ty, dims), &[x], |wire| {
            wire.set_ints(instruction::DIMENSIONS, &permutation);
        })
    }

    /// A call without side effects.
    fn pure_call(&mut self, target: &str, operands: &[i64], shape: Shape, config: &str) -> i64 {
        let layouts = self.layouts(operands, 0);
        self.push("custom-call", shape.by(0), operands, |wire| {
            wire.push_bytes(instruction::TARGET, target);
            wire.push_bytes(instruction::CONFIG, config);
            constrain(wire, &layouts);
            wire.push_int(instruction::API_VERSION, 4);
        })
    }

    /// The shapes of the operands with this dimension major-most.
    fn layouts(&self, operands: &[i64], major: usize) -> Vec<Shape> {
        // An unknown shape becomes a scalar, which does not match and is a compiler error.
        let shapes = operands.iter().map(|id| self.shapes.get(id).cloned().unwrap_or_else(|| Shape::scalar(U32)));
        shapes.map(|shape| shape.by(major)).collect()
    }

    /// A call in the chain of this computation's calls.
    fn call(&mut self, target: &str, operands: &[i64], shapes: &[Shape], attributes: &str) -> Vec<i64> {
        self.call_by(0, target, operands, shapes, attributes)
    }

    /// Like [`Rewrite::call`], with the dimension `major` major-most in every array, so that the devices' parts are
    /// contiguous along it. The plugin's collectives use the same layouts. A call must request them, because otherwise
    /// the function receives arrays in any layout.
    fn call_by(
        &mut self,
        major: usize,
        target: &str,
        operands: &[i64],
        shapes: &[Shape],
        attributes: &str,
    ) -> Vec<i64> {
        let widen = self.context.widen;
        let mut operands: Vec<i64> = operands.iter().map(|&x| self.as_sent(x)).collect();
        let mut layouts = self.layouts(&operands, major);
        // After a loop, the order is one of its results, of any shape.
        layouts.extend(self.layouts(self.order.as_slice(), 0));
        operands.extend(self.order);
        let sent = shapes.iter().map(|shape| if widen { shape.wide() } else { shape.clone() });
        let mut results: Vec<Shape> = sent.map(|shape| shape.by(major)).collect();
        results.push(Shape::scalar(U32));
        let program = match self.context.program {
            0 => String::new(),
            // MLIR's `i64` attributes are signed.
            number => format!("program = {} : i64, ", number >> 1),
        };
        let config = format!("{{n = {} : i64, {program}{attributes}}}", self.context.calls);
        self.context.calls += 1;
        let call = self.push("custom-call", Shape::tuple(results.clone()), &operands, |wire| {
            wire.push_bytes(instruction::TARGET, target);
            wire.push_bytes(instruction::CONFIG, config);
            constrain(wire, &layouts);
            wire.push_int(instruction::SIDE_EFFECT, 1);
            wire.push_int(instruction::API_VERSION, 4);
        });
        let mut elements: Vec<i64> =
            results.into_iter().enumerate().map(|(k, shape)| self.element(call, k, shape)).collect();
        self.order = elements.pop();
        elements.into_iter().zip(shapes).map(|(x, shape)| self.as_received(x, shape)).collect()
    }

    /// Converts an array to the type of the exchange.
    fn as_sent(&mut self, x: i64) -> i64 {
        match self.shapes.get(&x).map(|shape| (shape.ty, shape.wide())) {
            Some((ty, wide)) if self.context.widen && ty != wide.ty => self.push("convert", wide, &[x], |_| ()),
            _ => x,
        }
    }

    /// Converts an exchanged array back to the type of the program.
    fn as_received(&mut self, x: i64, shape: &Shape) -> i64 {
        match self.shapes.get(&x) {
            Some(sent) if sent.ty != shape.ty => self.push("convert", shape.clone(), &[x], |_| ()),
            _ => x,
        }
    }

    fn copy(&mut self, i: &Instruction<'_>, operands: &[i64]) {
        let mut wire = i.wire.clone();
        if operands != i.operands {
            wire.set_ints(instruction::OPERANDS, operands);
        }
        let control: Vec<i64> = i.control.iter().map(|&id| self.current(id)).collect();
        if control != i.control {
            wire.set_ints(instruction::CONTROL, &control);
        }
        wire.remove(&[instruction::SHARDING]);
        self.out.push(wire.encode());
    }

    fn plain(&mut self, i: &Instruction<'_>) -> Result<()> {
        match i.opcode.as_str() {
            "partition-id" => {
                let devices = self.context.devices;
                let is_identity = devices.iter().enumerate().all(|(position, &device)| position == device);
                let config = if is_identity {
                    "{}".to_owned()
                } else {
                    format!("{{devices = {}}}", list(devices.iter().copied()))
                };
                let id = self.pure_call("shardax.partition_id", &[], i.shape.clone(), &config);
                self.replaced.insert(i.id, id);
            }
            // The original program had one replica; now its partitions are the replicas.
            "replica-id" => {
                let mut literal = Wire::default();
                const U32S: u32 = 6;
                literal.push_bytes(1, i.shape.encode());
                literal.push_bytes(U32S, [0]);
                let literal = literal.encode();
                let id = self.push("constant", i.shape.clone(), &[], |wire| {
                    wire.push_bytes(instruction::LITERAL, literal);
                });
                self.replaced.insert(i.id, id);
            }
            opcode if super::super::is_collective(opcode) || UNSUPPORTED.contains(&opcode) => {
                return Err(i.unsupported("is not supported"));
            }
            _ => {
                let operands: Vec<i64> = i.operands.iter().map(|&id| self.current(id)).collect();
                self.copy(i, &operands);
            }
        }
        Ok(())
    }

    /// Replaces independent all-reduces: one call for all with the same reduction and groups.
    fn all_reduces(&mut self, reductions: &[&Instruction<'_>]) -> Result<()> {
        type Key = (Vec<Vec<usize>>, String, i32);
        // In the order of the program, because all processes must make the same calls.
        let mut calls: Vec<(Key, Vec<(usize, usize)>)> = Vec::new();
        for (r, i) in reductions.iter().enumerate() {
            let (groups, op) = (i.groups(self.context)?, i.reducer(self.context)?);
            let shapes = if i.shape.is_tuple() { i.shape.elements.as_slice() } else { std::slice::from_ref(&i.shape) };
            if shapes.len() != i.operands.len() {
                return Err(unexpected_program("has an all-reduce with more results than operands"));
            }
            for (k, shape) in shapes.iter().enumerate() {
                let key = (groups.clone(), op.clone(), shape.ty);
                match calls.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, parts)) => parts.push((r, k)),
                    None => calls.push((key, vec![(r, k)])),
                }
            }
        }
        let mut results: Vec<Vec<i64>> = reductions.iter().map(|i| vec![0; i.operands.len()]).collect();
        for ((groups, op, _), parts) in calls {
            let operands: Vec<i64> = parts.iter().map(|&(r, k)| self.current(reductions[r].operands[k])).collect();
            let shapes: Vec<Shape> = parts.iter().map(|&(r, k)| reductions[r].shape.leaf(k).clone()).collect();
            let attributes = format!("op = \"{op}\", {}", group_attributes(&groups));
            let reduced = self.call("shardax.all_reduce", &operands, &shapes, &attributes);
            parts.iter().zip(reduced).for_each(|(&(r, k), id)| results[r][k] = id);
        }
        for (i, parts) in reductions.iter().zip(results) {
            let id = if i.shape.is_tuple() { self.push("tuple", i.shape.clone(), &parts, |_| ()) } else { parts[0] };
            self.replaced.insert(i.id, id);
        }
        Ok(())
    }

    /// Replaces any other collective.
    fn exchange(&mut self, i: &Instruction<'_>) -> Result<()> {
        if i.is_control_flow() {
            return self.control_flow(i);
        }
        let operands: Vec<i64> = i.operands.iter().map(|&id| self.current(id)).collect();
        let shape = &i.shape;
        let result = match (i.opcode.as_str(), operands.as_slice(), shape.is_tuple()) {
            ("all-to-all", _, true) => self.all_to_all_of_parts(i, &operands)?,
            ("all-to-all", &[x], false) => self.all_to_all(i, x)?,
            ("all-gather", &[x], false) => self.all_gather(i, x)?,
            ("reduce-scatter", &[x], false) => self.reduce_scatter(i, x)?,
            ("collective-permute", &[x], false) => {
                // Pairs name partitions, which the host function must know as devices.
                let mut pairs = Vec::new();
                if i.wire.int(instruction::CHANNEL) == 0 {
                    return Err(i.unsupported("has no channel, and would exchange between replicas, not"));
                }
                for pair in i.wire.all_bytes(instruction::PAIRS) {
                    let pair = Wire::parse(pair)?;
                    pairs.push(i.device(pair.int(1), self.context)?);
                    pairs.push(i.device(pair.int(2), self.context)?);
                }
                let devices = list(self.context.devices.iter().copied());
                let attributes = format!("pairs = {}, devices = {devices}", list(pairs));
                self.call("shardax.permute", &[x], std::slice::from_ref(shape), &attributes)[0]
            }
            _ => return Err(i.unsupported("has several arrays, which is not supported")),
        };
        self.replaced.insert(i.id, result);
        Ok(())
    }

    fn all_gather(&mut self, i: &Instruction<'_>, x: i64) -> Result<i64> {
        let (groups, d) = (i.groups(self.context)?, i.dimension()?);
        let shapes = std::slice::from_ref(&i.shape);
        Ok(self.call_by(d, "shardax.all_gather", &[x], shapes, &group_attributes(&groups))[0])
    }

    fn reduce_scatter(&mut self, i: &Instruction<'_>, x: i64) -> Result<i64> {
        let (groups, d, op) = (i.groups(self.context)?, i.dimension()?, i.reducer(self.context)?);
        let attributes = format!("op = \"{op}\", {}", group_attributes(&groups));
        Ok(self.call_by(d, "shardax.reduce_scatter", &[x], std::slice::from_ref(&i.shape), &attributes)[0])
    }

    fn all_to_all(&mut self, i: &Instruction<'_>, x: i64) -> Result<i64> {
        let (groups, d) = (i.groups(self.context)?, i.dimension()?);
        let size = groups[0].len() as i64;
        let (x, apart, front) = self.cut(x, &i.shape, d, size, i.shape.dims[d] / size);
        let moved = Shape::array(i.shape.ty, front.iter().map(|&k| apart.dims[k]).collect::<Vec<_>>());
        let x = self.call("shardax.all_to_all", &[x], std::slice::from_ref(&moved), &group_attributes(&groups))[0];
        let back: Vec<usize> = (0..front.len()).map(|k| front.iter().position(|&f| f == k).unwrap_or(k)).collect();
        let x = self.transpose(x, &moved, &back);
        Ok(self.reshape(x, i.shape.clone()))
    }

    /// Splits dimension `d` into `size` parts of length `part` and moves the parts to the front. Also returns the shape
    /// after the split, and the permutation.
    fn cut(&mut self, x: i64, shape: &Shape, d: usize, size: i64, part: i64) -> (i64, Shape, Vec<usize>) {
        let mut dims = shape.dims.clone();
        dims[d] = part;
        dims.insert(d, size);
        let apart = Shape::array(shape.ty, dims);
        let x = self.reshape(x, apart.clone());
        let front: Vec<usize> = [d].into_iter().chain((0..apart.dims.len()).filter(|&k| k != d)).collect();
        let x = self.transpose(x, &apart, &front);
        (x, apart, front)
    }

    /// The form of all-to-all in which operand `k` is sent to member `k` of the group.
    fn all_to_all_of_parts(&mut self, i: &Instruction<'_>, operands: &[i64]) -> Result<i64> {
        let groups = i.groups(self.context)?;
        let part =
            i.shape.elements.first().cloned().ok_or_else(|| i.unsupported("without operands is not supported"))?;
        if operands.len() != groups[0].len() || i.shape.elements.iter().any(|e| *e != part) {
            return Err(i.unsupported("has parts of several shapes, which is not supported"));
        }
        // Concatenates the operands along a new first dimension, exchanges once, and slices the result apart.
        let (one, all) = (part.with_leading(1), part.with_leading(operands.len()));
        let parts: Vec<i64> = operands.iter().map(|&x| self.reshape(x, one.clone())).collect();
        let joined = self.push("concatenate", all.clone(), &parts, |wire| wire.set_ints(instruction::DIMENSIONS, &[0]));
        let moved =
            self.call("shardax.all_to_all", &[joined], std::slice::from_ref(&all), &group_attributes(&groups))[0];
        let mut results = Vec::new();
        for k in 0..operands.len() as i64 {
            let bounds = [(k, k + 1)].into_iter().chain(part.dims.iter().map(|&dim| (0, dim)));
            let slices: Vec<Vec<u8>> = bounds
                .map(|(start, limit)| {
                    let mut wire = Wire::default();
                    [(1, start), (2, limit), (3, 1)].into_iter().for_each(|(field, n)| wire.push_int(field, n));
                    wire.encode()
                })
                .collect();
            let slice = self.push("slice", one.clone(), &[moved], |wire| {
                slices.into_iter().for_each(|bytes| wire.push_bytes(instruction::SLICE, bytes));
            });
            results.push(self.reshape(slice, part.clone()));
        }
        Ok(self.push("tuple", i.shape.clone(), &results, |_| ()))
    }

    /// Orders a loop or branch that contains calls: after the calls before it, and before those after it.
    fn control_flow(&mut self, i: &Instruction<'_>) -> Result<()> {
        let mut operands: Vec<i64> = i.operands.iter().map(|&id| self.current(id)).collect();
        let no_array = || i.unsupported("has no array that could order it, so it cannot exchange");
        if let Some(order) = self.order {
            let first_operand = *operands.first().ok_or_else(no_array)?;
            let shape = self.shapes.get(&first_operand).cloned().ok_or_else(no_array)?;
            operands[0] = if shape.is_tuple() {
                // The smallest element is the cheapest to pass through a call.
                let (k, smallest) = smallest(&shape.elements).ok_or_else(no_array)?;
                let elements = shape.elements.clone();
                let mut parts: Vec<i64> =
                    elements.into_iter().enumerate().map(|(k, shape)| self.element(first_operand, k, shape)).collect();
                parts[k] = self.after(order, parts[k], smallest);
                self.push("tuple", shape.clone(), &parts, |_| ())
            } else {
                shape.size().ok_or_else(no_array)?;
                self.after(order, first_operand, &shape)
            };
        }
        self.copy(i, &operands);
        self.order = Some(if i.shape.is_tuple() {
            let (k, shape) = smallest(&i.shape.elements).ok_or_else(no_array)?;
            self.element(i.id, k, shape.clone())
        } else {
            i.id
        });
        Ok(())
    }

    /// Returns `x`, available only after the calls that `order` depends on.
    fn after(&mut self, order: i64, x: i64, shape: &Shape) -> i64 {
        let x = self.as_sent(x);
        let sent = self.shapes.get(&x).unwrap_or(shape).clone();
        let x = self.pure_call("shardax.after", &[x, order], sent, "{}");
        self.as_received(x, shape)
    }
}

/// Makes a call require these operand layouts, and the result layouts in its shape.
fn constrain(wire: &mut Wire<'_>, layouts: &[Shape]) {
    wire.push_int(instruction::CONSTRAIN_LAYOUT, 1);
    layouts.iter().for_each(|layout| wire.push_bytes(instruction::OPERAND_LAYOUTS, layout.encode()));
}
