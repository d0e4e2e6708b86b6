//! Layouts that the compilers of the platforms choose and accept.

use shardax::prelude::*;
use shardax::{Format, Layout};

/// The order of a format's dimensions, if the compiler chose a layout.
fn layout_order(format: &Format) -> Option<Vec<usize>> {
    format.layout().map(|layout| layout.major_to_minor().to_vec())
}

pub fn all(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on([256, 512], DType::F32, &device);
    let w = shape_dtype_struct_on([512, 384], DType::F32, &device);
    let tiled = topology.platform() == "tpu";

    // The layout that the compiler chooses. A TPU stores arrays in tiles.
    let auto = Format::new(Layout::AUTO, &device);
    fn product(x: Array, w: Array) -> Array {
        x.t().dot(w.t())
    }
    let lowered = jit(product).in_shardings(&auto).out_shardings(&auto).lower((&w, &x))?;
    assert_eq!(lowered.as_text().matches(r#"mhlo.layout_mode = "auto""#).count(), 3, "{}", lowered.as_text());
    let chosen = lowered.compile_for(topology)?;
    let (inputs, outputs) = (chosen.input_formats(), chosen.output_formats());
    for format in inputs.leaves().iter().flatten().chain(outputs.leaves()) {
        let layout = format.layout().expect("the compiler tells");
        let mut dims = layout.major_to_minor().to_vec();
        dims.sort_unstable();
        assert_eq!((dims, !layout.tiling().is_empty()), (vec![0, 1], tiled), "{format}");
        assert_eq!(format.sharding(), Some(&Sharding::from(&device)));
    }
    // What it chose is taken, and is not moved.
    let formats: Vec<Format> = inputs.leaves().iter().flatten().cloned().collect();
    let with_formats = jit(product).in_shardings((&formats[0], &formats[1])).out_shardings(&outputs);
    let with_formats =
        with_formats.lower((shape_dtype_struct([512, 384], DType::F32), shape_dtype_struct([256, 512], DType::F32)))?;
    let with_formats = with_formats.compile_for(topology)?;
    assert_eq!((with_formats.input_formats(), with_formats.output_formats()), (inputs, outputs));

    // Layouts that are given: of an argument, of a result, of a value inside.
    let columns = Format::new(Layout::new([1, 0]), &device);
    let f = jit(|x: Array| (x.sin(), with_layout_constraint(x.cos(), Layout::new([1, 0]))));
    let typed = shape_dtype_struct_on([256, 512], DType::F32, &columns);
    let lowered = f.out_shardings((&columns, &device)).lower(&typed)?;
    assert_eq!(lowered.as_text().matches(r#"mhlo.layout_mode = "{0,1}""#).count(), 2, "{}", lowered.as_text());
    let compiled = lowered.compile_for(topology)?;
    let (inputs, outputs) = (compiled.input_formats(), compiled.output_formats());
    for format in inputs.leaves().iter().flatten().chain(outputs.leaves()) {
        assert_eq!(layout_order(format), Some(vec![1, 0]), "{format}");
    }
    assert!(compiled.serialize()?.len() > 1000);

    // The same over a mesh.
    let mesh = topology.mesh([("x", 8)])?;
    let split = NamedSharding::new(&mesh, P!["x"]);
    let format = Format::new(Layout::new([1, 0]), &split);
    let x = shape_dtype_struct_on([1024, 512], DType::F32, &format);
    let compiled = jit(|x: Array| x * 2.0).out_shardings(&format).lower(&x)?.compile_for(topology)?;
    let out = &compiled.output_formats().leaves()[0].clone();
    assert_eq!((layout_order(out), out.sharding()), (Some(vec![1, 0]), Some(&Sharding::from(&split))));
    assert_eq!(compiled.output_shardings().leaves(), [Sharding::from(&split)]);

    // A value that is split is constrained where it lies, on a TPU as it is, elsewhere in a `shard_map`.
    let y = shape_dtype_struct_on([1024, 512], DType::F32, &split);
    fn twice(x: Array) -> Array {
        with_layout_constraint(x * 2.0, Layout::new([1, 0]))
    }
    let mapped = jit(shard_map(twice, &mesh).in_specs(P!["x"]).out_specs(P!["x"])).lower(&y)?;
    assert_eq!(mapped.as_text().matches("\"LayoutConstraint\"").count(), 1, "{}", mapped.as_text());
    assert_eq!(mapped.compile_for(topology)?.collectives()?.count(), 0);
    let constrained = jit(twice).lower(&y)?.compile_for(topology)?;
    assert_eq!(layout_order(&constrained.output_formats().leaves()[0]), Some(vec![1, 0]));
    if tiled {
        assert_eq!(constrained.collectives()?.count(), 0, "{}", constrained.collectives()?);
    }

    // Nothing said: the default, which is reported too.
    let plain = jit(|x: Array| x * 2.0).lower(&w)?;
    assert!(!plain.as_text().contains("layout_mode"), "{}", plain.as_text());
    let compiled = plain.compile_for(topology)?;
    let format = compiled.output_formats().leaves()[0].clone();
    assert_eq!(format.layout().map(|layout| !layout.tiling().is_empty()), Some(tiled), "{format}");
    if tiled {
        let tiles = Layout::new([1, 0]).with_tiling([[8, 128]]);
        let with_formats = jit(|x: Array| x * 2.0).out_shardings(Format::new(&tiles, &device)).lower(&w)?;
        assert!(
            with_formats.as_text().contains(r#"mhlo.layout_mode = "{0,1:T(8,128)}""#),
            "{}",
            with_formats.as_text()
        );
        assert_eq!(with_formats.compile_for(topology)?.output_formats().leaves()[0].layout(), Some(&tiles));
    }
    Ok(())
}
