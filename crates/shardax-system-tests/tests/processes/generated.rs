//! Random programs over all devices: the same bits, however many processes the devices are spread over.
//!
//! A number makes a program: what it computes is drawn while it is traced. More of them:
//!
//! ```sh
//! SHARDAX_TEST_RANDOM_PROGRAMS=0..200 SHARDAX_TEST_JOB_CASE=random_programs SHARDAX_TEST_JOB_LIMIT=900 \
//!     cargo test -p shardax-system-tests --test processes random_programs
//! ```
//!
//! They are compiled without FMA. With it a product and a sum are rounded once where they are in one kernel, which XLA
//! decides, and decides differently around a collective and a call of the host.

use std::ops::Range;

use crate::equal::compare;
use crate::*;

/// Programs that are compiled as one.
const TOGETHER: u64 = 10;
const STEPS: usize = 8;

/// The programs to run.
fn numbers() -> Range<u64> {
    let variable = std::env::var("SHARDAX_TEST_RANDOM_PROGRAMS").ok();
    let range = variable.as_deref().and_then(|text| text.split_once(".."));
    range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?)).unwrap_or(0..10)
}

struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

/// Two axes of all devices.
fn mesh() -> Result<Mesh> {
    make_mesh([("a", device_count() / 2), ("b", 2)]).map(|mesh| mesh.auto())
}

/// Specs of two dimensions that split over all devices.
fn whole_specs() -> [PartitionSpec; 5] {
    [P!["a", "b"], P!["b", "a"], P![("a", "b")], P![("b", "a")], P![None, ("a", "b")]]
}

fn any_spec(draw: &mut Draw) -> PartitionSpec {
    let some = [P![], P!["a"], P!["b"], P![None, "a"], P![None, "b"]];
    draw.of(&[&whole_specs()[..], &some].concat())
}

const DTYPES: [DType; 5] = [DType::F32, DType::Bf16, DType::I32, DType::U8, DType::Bool];

/// Creates an array whose numbers depend only on the seed, not on the sharding.
fn input(draw: &mut Draw, dtype: DType) -> Result<Array> {
    let n = device_count();
    let shape = [n * (1 + draw.below(3)), n * (1 + draw.below(3))];
    let (seed, sharding) = (draw.next(), NamedSharding::new(&mesh()?, any_spec(draw)));
    make_array_from_callback(shape, dtype, &sharding, |index| {
        fn number(row: usize, column: usize, seed: u64, shape: &[usize; 2]) -> f32 {
            let random = Draw::new(seed ^ (row * shape[1] + column) as u64).next();
            let scale = [1.0, 0.01, 7.0, 1.0][(random & 3) as usize];
            ((random >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        }
        let block: Vec<f32> = index[0]
            .clone()
            .flat_map(|row| index[1].clone().map(move |column| number(row, column, seed, &shape)))
            .collect();
        let block = Array::from_slice(&block, &[index[0].len(), index[1].len()])?;
        Ok(match dtype {
            DType::Bool => block.greater(0),
            DType::U8 => (block.abs() * 30).astype(dtype),
            DType::I32 => (block * 9).astype(dtype),
            _ => block.astype(dtype),
        })
    })
}

fn float(x: &Array) -> Array {
    if x.dtype() == DType::Bf16 { x.clone() } else { x.astype(DType::F32) }
}

/// A float of moderate size.
fn tame(x: &Array) -> Array {
    let x = float(x);
    x.clone() / (x.abs() * 0.5 + 1.0)
}

/// The array as numbers that can be added.
fn number(x: &Array) -> Array {
    if x.dtype() == DType::Bool { x.astype(DType::I32) } else { x.clone() }
}

fn is_float(x: &Array) -> bool {
    matches!(x.dtype(), DType::F32 | DType::Bf16)
}

/// The second in the shape of the first, as far as it has numbers for it.
fn alike(x: &Array, y: &Array) -> Array {
    let (rows, columns) = (x.shape()[0], x.shape()[1]);
    fn grown(y: Array, axis: usize, size: usize) -> Array {
        let times = size.div_ceil(y.shape()[axis]);
        let long = if times > 1 { concatenate(&vec![y; times], axis as i32) } else { y };
        if axis == 0 { long.get(..size as i32) } else { long.get((.., ..size as i32)) }
    }
    grown(grown(y.clone(), 0, rows), 1, columns)
}

/// The next value, of two dimensions that the number of devices divides.
fn step(draw: &mut Draw, values: &[Array]) -> Result<Array> {
    let (x, y) = (&draw.of(values), &draw.of(values));
    let (rows, columns) = (x.shape()[0], x.shape()[1]);
    let axis = draw.below(2) as i32;
    Ok(match draw.below(20) {
        0 => match draw.below(4) {
            0 => tame(x).sin(),
            1 => float(x).tanh(),
            2 => (-tame(x).square()).exp(),
            _ => tame(x).abs().sqrt() + 0.5,
        },
        1 => match (alike(x, y), draw.below(4)) {
            (y, 0) => number(x) + number(&y),
            (y, 1) => tame(x) * tame(&y),
            (y, 2) => maximum(number(x), number(&y)),
            (y, _) => where_(number(x).greater(number(&y)), x, y),
        },
        2 => x.astype(draw.of(&DTYPES)),
        3 => match draw.below(5) {
            0 => number(x) - number(x).sum_keepdims(axis),
            1 => tame(x) - tame(x).mean_keepdims(axis),
            2 => number(x).max_keepdims(axis) - number(x),
            3 => number(x) + number(x).min(..),
            _ => (float(x).astype(DType::F32) / float(x).abs().max(..).astype(DType::F32)).var_keepdims(axis) + tame(x),
        },
        4 => {
            let (x, y) = (tame(x), tame(&alike(x, y)));
            if axis == 0 { x.matmul(y.t()) * 0.1 } else { x.t().matmul(y) * 0.1 }
        }
        5 => x.t(),
        6 => match draw.below(3) {
            0 => x.reshape([columns, rows]),
            1 => {
                let n = device_count();
                x.reshape([rows * columns / n, n])
            }
            _ => x.reshape([rows / 2, 2, columns]).swapaxes(0, 1).reshape([rows, columns]),
        },
        7 | 8 => with_sharding_constraint(x.clone(), NamedSharding::new(&mesh()?, any_spec(draw))),
        9 => match draw.below(4) {
            0 => x.roll(1 + draw.below(5) as i64, axis),
            1 => x.flip(axis),
            2 => concatenate(&[x.get(1..), x.get(..1)], 0),
            _ => concatenate(&[x.get((.., 2..)), x.get((.., ..2))], 1) + 0,
        },
        10 => {
            let size = x.shape()[axis as usize] as i32;
            match draw.below(3) {
                0 => x.take((arange(0..size) * 5 + 3) % size, axis),
                // At positions that follow from the data.
                1 => {
                    let order = float(y).sum(1).argmax(0).astype(DType::I32) + arange(0..size);
                    x.take(order % size, axis)
                }
                _ => {
                    let rows = (arange(0..4) * 3 + draw.below(3) as i32) % rows as i32;
                    tame(x).at(rows).add(tame(x).get(0) * 0.25)
                }
            }
        }
        11 => match draw.below(3) {
            0 => number(x).sort(axis),
            1 => number(x).cumsum(axis),
            _ => number(x).argsort(axis).astype(DType::I32),
        },
        12..=14 => on_blocks(draw, x)?,
        15 => {
            let w = tame(&x.t().matmul(x.clone().astype(x.dtype())).astype(DType::F32)) * 0.2;
            let times = 2 + draw.below(3);
            scan_n(
                move |c: Array| -> Result<(Array, ())> { Ok((c.matmul(&w).tanh(), ())) },
                tame(x).astype(DType::F32),
                times,
            )?
            .0
        }
        16 => {
            let positive = float(y).sum(..).greater(0);
            cond(positive, |x: Array| tame(&x).astype(DType::F32).sin(), |x| -tame(&x).astype(DType::F32), x.clone())?
        }
        17 => {
            let spec = draw.of(&whole_specs());
            let mesh = mesh()?;
            let loss = move |x: Array| -> Result<Array> {
                let total = shard_map(|x: Array| psum((x.sin() * &x).sum(..), ("a", "b")), &mesh)
                    .in_specs(spec.clone())
                    .out_specs(P![])
                    .call(&x)?;
                Ok(total * 0.1 + (x.tanh() * x.mean_keepdims(0)).sum(..))
            };
            grad(loss).call(tame(x).astype(DType::F32))?
        }
        18 => vmap(|row: Array| row.clone() - row.max(..) + row.cumsum(0) * 0.1).call(tame(x))?,
        _ => tame(x) + random::uniform(&random::key(draw.below(100) as u32), [rows, columns]).astype(float(x).dtype()),
    })
}

/// A few collectives, on the blocks of a `shard_map` over all devices.
fn on_blocks(draw: &mut Draw, x: &Array) -> Result<Array> {
    let (spec, seed) = (draw.of(&whole_specs()), draw.next());
    let body = move |mut x: Array| -> Result<Array> {
        let draw = &mut Draw::new(seed);
        for _ in 0..1 + draw.below(3) {
            x = collective(draw, &x)?;
        }
        Ok(x)
    };
    shard_map(body, &mesh()?).in_specs(spec.clone()).out_specs(spec).check_vma(false).call(number(x))
}

/// One that keeps the shape of the block.
fn collective(draw: &mut Draw, x: &Array) -> Result<Array> {
    let names: &[&str] = draw.of(&[&["a"][..], &["b"], &["a", "b"], &["b", "a"]]);
    let size: usize = names.iter().map(|&name| axis_size(name)).product::<Result<usize>>()?;
    let (shape, d) = (x.shape().to_vec(), draw.below(2) as i32);
    let divides = shape[d as usize] % size == 0;
    Ok(match draw.below(14) {
        0 if is_float(x) => psum(tame(x), names) * 0.5,
        1 if is_float(x) => pmean(x.clone(), names),
        2 => pmax(x.clone(), names),
        3 => pmin(x.clone(), names),
        4 => all_gather(x.clone(), names, 0).sum(0).astype(x.dtype()),
        5 => psum_scatter_tiled(all_gather_tiled(x.clone(), names, d), names, d),
        6 if divides => all_gather_tiled(psum_scatter_tiled(x.clone(), names, d), names, d),
        7 if divides => all_to_all_tiled(x.clone(), names, d, 1 - d).reshape(shape.as_slice()),
        8 => {
            let turn = 1 + draw.below(size);
            let most = 1 + draw.below(size);
            let pairs: Vec<(usize, usize)> = (0..most).map(|i| (i, (i + turn) % size)).collect();
            ppermute(x.clone(), names, pairs) + x
        }
        9 => x + axis_index(names).astype(x.dtype()),
        10 => {
            let names: Vec<&'static str> = names.iter().map(|&name| if name == "a" { "a" } else { "b" }).collect();
            fori_loop(
                0,
                3,
                move |_: Array, c: Array| tame(&psum(c.sin(), names.as_slice())),
                float(x).astype(DType::F32),
            )?
        }
        11 => {
            // The condition is of all devices, and so the same on each.
            fn total_of(c: &Array) -> Array {
                psum(c.sum(..), ("a", "b"))
            }
            let start = tame(x).astype(DType::F32).square();
            let limit = total_of(&start) * 0.3;
            while_loop(move |c: Array| total_of(&c).greater(&limit), |c: Array| c * 0.7, start)?
        }
        12 => {
            let positive = psum(float(x).astype(DType::F32).sum(..), ("a", "b")).greater(0);
            let x = float(x).astype(DType::F32);
            cond(
                positive,
                |x: Array| pmax(x, "a"),
                |x: Array| psum(tame(&x), "b") + axis_index("a").astype(DType::F32),
                x,
            )?
        }
        _ => psum(x.clone(), names),
    })
}

/// The results of the program with this number.
fn program(number: u64, inputs: &[Array]) -> Result<Vec<Array>> {
    let draw = &mut Draw::new(number);
    let mut values = inputs.to_vec();
    for _ in 0..STEPS {
        let next = step(draw, &values)?;
        next.check()?;
        values.push(next);
    }
    let last = values.split_off(values.len() - 3);
    Ok(last)
}

pub fn results() -> Result<Vec<(String, Array)>> {
    let mut out = Vec::new();
    let numbers: Vec<u64> = numbers().collect();
    // With the same inputs whichever of them run.
    for group in numbers.chunk_by(|a, b| a / TOGETHER == b / TOGETHER) {
        let draw = &mut Draw::new((group[0] / TOGETHER) ^ 0x5eed);
        let inputs: Vec<Array> = DTYPES.iter().map(|&dtype| input(draw, dtype)).collect::<Result<_>>()?;
        let programs = jit(|inputs: Vec<Array>| -> Result<Vec<Vec<Array>>> {
            let run =
                |&number: &u64| program(number, &inputs).map_err(|e| e.context(format!("random program {number}")));
            group.iter().map(run).collect()
        });
        let programs = programs.lower(&inputs)?.compile_with_options(&[("xla_cpu_max_isa", "AVX".into())])?;
        for (number, made) in group.iter().zip(programs.call(&inputs)?) {
            out.extend(made.into_iter().enumerate().map(|(k, array)| (format!("random {number} {k}"), array)));
        }
    }
    Ok(out)
}

/// Programs whose last input each process gives by itself: a number, an array, or one that the function captures. Where
/// it differs on one process, all have the error; and all go on.
fn with_own_values() -> Result<()> {
    for number in numbers().step_by(4) {
        let draw = &mut Draw::new(number ^ 0x0a46);
        let inputs: Vec<Array> = DTYPES.iter().map(|&dtype| input(draw, dtype)).collect::<Result<_>>()?;
        let (kind, odd, dtype) = (draw.below(3), draw.below(process_count()), draw.of(&DTYPES));
        fn with_kind(value: i32, dtype: DType, kind: usize) -> Array {
            match kind {
                0 => Array::from(value),
                1 => (arange(0..2) + value).astype(dtype),
                _ => array([value, 1]).astype(dtype),
            }
        }
        let run = move |mut inputs: Vec<Array>, contribution: Array| -> Result<Vec<Array>> {
            let contribution = float(&contribution).astype(DType::F32).sum(..) * 0.01;
            inputs[0] = &inputs[0] + &contribution;
            let mut outs = program(number, &inputs)?;
            // What no result depends on is not an input of the program.
            outs.push(contribution);
            Ok(outs)
        };
        let by_argument = jit(run);
        let call = |value: i32| -> Result<Vec<Vec<u8>>> {
            let contribution = with_kind(value, dtype, kind);
            let outs = match kind {
                2 => jit(move |inputs: Vec<Array>| run(inputs, contribution.clone())).call(&inputs),
                _ => by_argument.call((&inputs, contribution)),
            };
            let shards = outs?.iter().map(Array::addressable_shards).collect::<Result<Vec<_>>>()?;
            shards.iter().flatten().map(|shard| shard.data.to_bytes()).collect()
        };
        let first = call(0)?;
        let different = call(i32::from(process_index() == odd));
        let error = different.err().unwrap_or_else(|| panic!("program {number} mixes what processes have")).to_string();
        assert!(error.contains("is not the same on each process"), "program {number}: {error}");
        assert_eq!(call(0)?, first, "program {number}");
    }
    Ok(())
}

#[test]
fn random_programs_with_values_that_differ_are_errors_on_all() {
    everywhere(with_own_values);
}

#[test]
fn random_programs_are_equal_bit_by_bit() {
    everywhere(|| compare(results()?));
}
