//! Kernels as text for GPUs and TPUs, and what these cannot run, as a snapshot (`tests/snapshots/pallas_rejected.txt`).

use std::fmt::Write as _;

use shardax::control_flow::{platform_dependent, scan, switch};
use shardax::experimental::pallas::{self as pl, BlockDim, BlockSpec, Ref, ds};
use shardax::export::ExportOptions;
use shardax::numpy::{integer_pow, sort};
use shardax::prelude::*;

use super::common::setup;
use super::common::snapshot::snapshot;
use super::{copy, double, of};

type Call = fn(Array) -> Result<Array>;

fn text(platform: &str, f: Call, x: &Array) -> Result<String> {
    let exported = ExportOptions::new().platforms([platform]).export(f, x)?;
    Ok(exported.mlir_module(platform).unwrap_or_default().to_owned())
}

fn rows() -> BlockSpec {
    BlockSpec::new([8, 128], |[i]| (i, 0))
}

fn like(x: &Array) -> Array {
    shape_dtype_struct(x.shape(), x.dtype())
}

#[test]
fn kernels_are_texts_of_triton_and_mosaic() -> Result<()> {
    setup();
    let triton = text("cuda", double, &ones([10]))?;
    for word in ["__gpu$xla.gpu.triton", "grid_x = 3", "tt.load", "arith.mulf", "tt.store", "arith.cmpi"] {
        assert!(triton.contains(word), "{word} is missing in {triton}");
    }
    let twice: Call = |x| {
        let call = pl::pallas_call(|[x, o]: [Ref; 2]| o.set(x.get() * 2), like(&x)).grid([2]);
        call.in_specs([rows()]).out_specs([rows()]).call([x])
    };
    let x = ones([16, 128]);
    let mosaic = text("tpu", twice, &x)?;
    for word in ["tpu_custom_call", "custom_call_config", "serialization_format"] {
        assert!(mosaic.contains(word), "{word} is missing in {mosaic}");
    }
    // Positions that share a result, and scratch memory, are a loop on GPUs.
    let sum: Call = |x| {
        fn kernel([x, o, s]: [Ref; 3]) -> Result<()> {
            let i = pl::program_id(1);
            pl::when(i.equal(0), || s.set(0.0))?;
            s.add(x.get())?;
            pl::when(i.equal(3), || o.set(s.get()))
        }
        let call = pl::pallas_call(kernel, shape_dtype_struct([16, 128], DType::F32)).grid([2, 4]);
        let call = call.in_specs([BlockSpec::new([8, 128], |[i, j]| (i * 4 + j, 0))]);
        let call = call.out_specs([BlockSpec::new([8, 128], |[i, _]| (i, 0))]);
        call.scratch_shapes([shape_dtype_struct([8, 128], DType::F32)]).call([x])
    };
    let looped = text("cuda", sum, &ones([64, 128]))?;
    assert!(looped.contains("grid_x = 2") && looped.contains("scf.for"), "{looped}");
    let looped = text("tpu", |x| pl::pallas_call(copy, of([8])).interpret(true).call([x]), &ones([8]))?;
    assert!(!looped.contains("custom_call"), "{looped}");
    text("tpu", |x| platform_dependent(["cpu", "default"], (double, |x: Array| Ok(x * 2)), x), &ones([8]))?;
    Ok(())
}

/// Of fewer elements Triton computes wrong sums on a GPU's matrix units: compared on an H100, by `golden`.
#[test]
fn products_of_few_elements_are_computed_in_float32() -> Result<()> {
    setup();
    fn product(dtype: DType, contracted: usize) -> Result<String> {
        let x = zeros_dtype([16, contracted], dtype);
        fn f(x: Array) -> Result<Array> {
            fn kernel([x, y, o]: [Ref; 3]) -> Result<()> {
                o.set(pl::dot(&x.get(), &y.get()).astype(o.dtype()))
            }
            pl::pallas_call(kernel, shape_dtype_struct([16, 16], DType::F32)).call([&x, &x.t()])
        }
        text("cuda", f, &x)
    }
    for (dtype, contracted, operand) in [
        (DType::Bf16, 16, "16x16xbf16> *"),
        (DType::Bf16, 8, "inputPrecision = ieee : tensor<16x8xf32> *"),
        (DType::I8, 32, "16x32xi8> *"),
        (DType::I8, 16, "inputPrecision = ieee : tensor<16x16xf32> *"),
        (DType::F32, 16, "inputPrecision = tf32 : tensor<16x16xf32> *"),
        (DType::F32, 8, "inputPrecision = ieee : tensor<16x8xf32> *"),
    ] {
        let text = product(dtype, contracted)?;
        assert!(text.contains(operand), "{dtype}, {contracted}: {text}");
    }
    Ok(())
}

/// Applies a kernel once, to whole arrays.
fn once(x: Array, kernel: impl Fn(&Ref, &Ref) -> Result<()>) -> Result<Array> {
    let out = like(&x);
    pl::pallas_call(|[x, o]: [Ref; 2]| kernel(&x, &o), out).call([x])
}

/// Kernels that neither platform has.
const ON_BOTH: [(&str, [usize; 2], Call); 8] = [
    ("an operation", [8, 128], |x| once(x, |x, o| o.set(sort(x.get(), 0)))),
    ("a power", [8, 128], |x| once(x, |x, o| o.set(integer_pow(x.get(), 100)))),
    ("a product of batches", [8, 128], |x| {
        once(x, |x, o| o.set(x.get().expand_dims(0).matmul(ones([1, 128, 128])).sum(0)))
    }),
    ("a conditional of three", [8, 128], |x| {
        let branch = |n: i32| move |x: Array| x * n;
        let kernel = |[x, o]: [Ref; 2]| o.set(switch(pl::program_id(0), (branch(0), branch(1), branch(2)), x.get())?);
        pl::pallas_call(kernel, like(&x)).grid([1]).call([x])
    }),
    ("a scan over an array", [8, 128], |x| {
        once(x, |x, o| {
            o.set(scan(|sum: Array, row: Array| (sum + row, ()), zeros([128]), x.get())?.0.broadcast_to([8, 128]))
        })
    }),
    ("positions in an array", [8, 128], |x| once(x, |x, o| o.at(0).set(x.at(arange(0..2)).get().sum(0)))),
    ("complex numbers", [8, 128], |x| once(x, |x, o| o.set((x.get().astype(DType::Complex64) * 2).real()))),
    ("blocks that start anywhere", [8, 128], |x| {
        let spec = BlockSpec::new((BlockDim::Element { size: 8, padding: (0, 0) }, 128), |[i]| (i, 0));
        pl::pallas_call(copy, like(&x)).grid([1]).in_specs([spec]).out_specs([rows()]).call([x])
    }),
];

const ON_GPUS: [(&str, [usize; 2], Call); 6] = [
    ("sizes", [12, 128], |x| once(x, |x, o| o.set(x.get()))),
    ("a part of scratch memory", [8, 128], |x| {
        let kernel = |[x, o, s]: [Ref; 3]| {
            s.at(0).set(x.at(0).get())?;
            o.set(s.get())
        };
        pl::pallas_call(kernel, like(&x)).scratch_shapes([like(&x)]).call([x])
    }),
    ("a shared block", [16, 128], |x| {
        let spec = || BlockSpec::new([8, 128], |[_, i]| (i, 0));
        let call = pl::pallas_call(|[x, o]: [Ref; 2]| o.add(x.get()), like(&x)).grid([4, 2]);
        call.in_specs([spec()]).out_specs([spec()]).call([x])
    }),
    ("a large value", [1 << 14, 128], |x| once(x, |x, o| o.set(x.get()))),
    ("a large grid", [8, 128], |x| {
        let spec = || BlockSpec::new([1, 1], |[_, i]| (i, 0));
        pl::pallas_call(copy, like(&x)).grid([1, 1 << 16]).in_specs([spec()]).out_specs([spec()]).call([x])
    }),
    ("booleans", [8, 128], |x| {
        let out = shape_dtype_struct([8, 128], DType::Bool);
        let positive = pl::pallas_call(|[x, o]: [Ref; 2]| o.set(x.get().greater(0)), out).call([x])?;
        Ok(positive.astype(DType::F32))
    }),
];

const ON_TPUS: [(&str, [usize; 2], Call); 9] = [
    ("a cumulative sum", [8, 128], |x| once(x, |x, o| o.set(x.get().cumsum(0)))),
    ("a block's sizes", [64, 256], |x| {
        let spec = || BlockSpec::new([4, 128], |[i]| (i, 0));
        pl::pallas_call(copy, like(&x)).grid([16]).in_specs([spec()]).out_specs([spec()]).call([x])
    }),
    ("a block of a vector", [64, 256], |x| {
        let spec = || BlockSpec::new([4], |[i]| [i]);
        let call = pl::pallas_call(copy, of([64 * 256])).grid([4096]).in_specs([spec()]).out_specs([spec()]);
        call.call([x.ravel()])
    }),
    ("an array without dimensions", [8, 128], |x| {
        pl::pallas_call(|[x, o]: [Ref; 2]| o.set(x.get()), shape_dtype_struct((), DType::F32)).call([x.sum(..)])
    }),
    ("64 bits", [8, 128], |x| once(x.astype(DType::F64), |x, o| o.set(x.get()))),
    ("an element", [8, 128], |x| once(x, |x, o| o.set(x.get() + x.at((0, 0)).get()))),
    ("a masked range", [8, 128], |x| {
        once(x, |x, o| o.set(x.at(ds(0, 8)).load(full_dtype([8, 128], true, DType::Bool), 0.0)))
    }),
    ("a reduction to a scalar", [8, 128], |x| once(x, |x, o| o.set(x.get() * x.get().sum(..)))),
    ("a product of elements", [8, 128], |x| once(x, |x, o| o.set(x.get() * x.get().prod_keepdims(1)))),
];

#[test]
fn kernels_that_gpus_and_tpus_cannot_run_are_errors() {
    setup();
    let (mut all, mut wrong) = (String::new(), Vec::new());
    for (platform, rows) in [("cuda", &ON_GPUS[..]), ("tpu", &ON_TPUS[..])] {
        for (name, shape, call) in ON_BOTH.iter().chain(rows) {
            let error = text(platform, *call, &zeros(*shape)).err();
            let message = error.map_or_else(|| "no error".to_owned(), |e| e.to_string());
            let complete = ["on ", "tests/pallas/devices.rs:", "help:"].iter().all(|word| message.contains(word));
            if !complete {
                wrong.push(format!("{platform}, {name}: {message}"));
            }
            let lines =
                message.lines().map(|line| if line.trim_start().starts_with("at ") { "  at devices.rs" } else { line });
            let _ = writeln!(all, "== {platform}: {name}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    snapshot("pallas_rejected", &all);
}
