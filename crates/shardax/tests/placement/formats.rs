//! Formats of compiled programs: requested layouts, the compiler's choice, and layouts that are rejected.

use shardax::stages::LeafTree;
use shardax::{AutoLayout, ErrorKind, Format, Layout, LayoutOptions, export};

use super::layouts::{COLUMNS, cube, floats, here, order};
use super::*;
use crate::common::snapshot::snapshot;

#[test]
fn the_compiler_chooses_where_it_may() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let turned = jit(|x: Array| x.transpose([2, 1, 0])).out_shardings(Format::new(Layout::AUTO, device));
    let y = turned.call(cube())?;
    assert_eq!(
        (y.shape(), order(&y)?, y.to_vec::<f32>()?),
        (&[4, 3, 2][..], COLUMNS.to_vec(), cube().t().to_vec::<f32>()?)
    );
    assert!(y.committed());
    // Without a sharding, the result may leave its device.
    let y = jit(|x: Array| x.t()).out_shardings(Format::from(Layout::AUTO)).call(cube())?;
    assert_eq!((y.committed(), order(&y)?, y.to_vec::<f32>()?), (false, COLUMNS.to_vec(), cube().t().to_vec::<f32>()?));
    assert_eq!((&y + 1.0).to_vec::<f32>()?, (cube().t() + 1.0).to_vec::<f32>()?);

    let f = jit(|(x, y): (Array, Array), z: Array| (x.t().dot(y), z)).in_shardings(Format::from(Layout::AUTO));
    let (a, b) = (shape_dtype_struct([64, 32], DType::F32), shape_dtype_struct([64, 8], DType::F32));
    let compiled = f.lower(((a, b), shape_dtype_struct([2, 3, 4], DType::F32)))?.compile()?;
    let formats: LeafTree<Option<Format>> = compiled.input_formats();
    assert_eq!(formats.leaves().len(), 3);
    for (format, rank) in formats.leaves().iter().zip([2, 2, 3]) {
        let format = format.as_ref().expect("it is taken");
        assert_eq!(format.layout().map(|l| l.major_to_minor().len()), Some(rank));
        assert_eq!(format.sharding(), Some(&device.into()));
    }
    assert_eq!(compiled.output_formats().leaves()[0].layout(), Some(&Layout::new([0, 1])));
    let args = device_put(&((ones([64, 32]), ones([64, 8])), cube()), &compiled.input_formats())?;
    assert_eq!(compiled.call(args)?.0.to_vec::<f32>()?, [64.0; 256]);
    // Arguments that are not taken have no format.
    let unused = jit(|x: Array, _: Array| x).lower((cube(), cube()))?.compile()?;
    assert!(unused.input_formats().leaves()[0].is_some() && unused.input_formats().leaves()[1].is_none());
    Ok(())
}

#[test]
fn compiled_programs_travel_with_their_layouts() -> Result<()> {
    setup();
    let (from, to) = (here(COLUMNS)?, here([1, 0, 2])?);
    let f = jit(|x: Array| x * 2.0).in_shardings(&from).out_shardings(&to);
    let lowered = f.lower(shape_dtype_struct([2, 3, 4], DType::F32))?;
    let bytes = lowered.compile()?.serialize()?;
    let loaded = Compiled::load(&lowered, &bytes)?;
    assert_eq!(loaded.input_formats().leaves(), [Some(from.clone())]);
    assert_eq!(loaded.output_formats().leaves(), std::slice::from_ref(&to));
    let y = loaded.call(device_put(&cube(), &from)?)?;
    assert_eq!((y.format()?, y.to_vec::<f32>()?), (to, (cube() * 2.0).to_vec::<f32>()?));
    // A `shape_dtype_struct` can have a format too.
    let typed = shape_dtype_struct_on([2, 3, 4], DType::F32, &from);
    let compiled = jit(|x: Array| x * 2.0).lower(&typed)?.compile()?;
    assert_eq!(compiled.input_formats().leaves(), [Some(from.clone())]);
    assert_eq!(order(&compiled.call(device_put(&cube(), &from)?)?)?, [0, 1, 2]);

    // An exported function does not contain the layouts of its arguments.
    let exported = export::export(f, shape_dtype_struct([2, 3, 4], DType::F32))?;
    assert_eq!(exported.call(cube())?.to_vec::<f32>()?, (cube() * 2.0).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn layout_errors_of_rank_and_order() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let x = cube();
    let wrong = |order: &[usize]| Format::new(Layout::new(order), device);
    let rank = [
        "Length of major_to_minor and the rank of the value should match. Got major_to_minor=(1, 0) and shape=(2, 3, 4)",
    ];
    fails(device_put(&x, wrong(&[1, 0])), ErrorKind::Value, &rank);
    fails(
        jit(|x: Array| x).in_shardings(wrong(&[1, 0])).call(&x),
        ErrorKind::Value,
        &[
            rank[0],
            "One of jit arguments, argument[0], is incompatible with its layout annotation Layout(major_to_minor=(1, 0), tiling=(), sub_byte_element_size_in_bits=0)",
        ],
    );
    fails(
        jit(|x: Array| x).out_shardings(wrong(&[1, 0])).call(&x),
        ErrorKind::Value,
        &[rank[0], "One of jit outputs, output, is"],
    );
    let constrained =
        |order: &'static [usize]| jit(move |x: Array| with_layout_constraint(x, Layout::new(order))).call(cube());
    fails(constrained(&[1, 0]), ErrorKind::Value, &[rank[0], "One of with_layout_constraint arguments"]);
    let words = ["major_to_minor must be a permutation of the dimensions of the value"];
    for order in [[1, 1, 0], [1, 5, 0]] {
        fails(device_put(&x, wrong(&order)), ErrorKind::Value, &words);
        fails(jit(|x: Array| x).in_shardings(wrong(&order)).call(&x), ErrorKind::Value, &words);
        fails(with_layout_constraint(x.clone(), Layout::new(order)).to_vec::<f32>(), ErrorKind::Value, &words);
    }
    fails(constrained(&[0, 1, 1]), ErrorKind::Value, &words);
    fails(
        with_layout_constraint(x.clone(), [Layout::new([0]), Layout::new([0])]).to_vec::<f32>(),
        ErrorKind::Value,
        &["with_layout_constraint layouts has 2 entries"],
    );
    Ok(())
}

/// The compiler's layout is not known before compilation.
#[test]
fn auto_layout_errors() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let x = cube();
    let placed = device_put(&x, device)?;
    let auto = Format::new(Layout::AUTO, device);
    fails(
        device_put(&x, &auto),
        ErrorKind::Value,
        &["should be concrete. Got layout: Format(layout=AUTO, sharding=SingleDeviceSharding("],
    );
    fails(shape_dtype_struct_on([2], DType::F32, &auto).check(), ErrorKind::Value, &["should be concrete"]);
    let f = jit({
        let auto = auto.clone();
        move |x: Array| with_sharding_constraint(x, &auto)
    });
    fails(f.call(&x), ErrorKind::Value, &["with_sharding_constraint needs a known layout or none, got `Layout::AUTO`"]);
    let error = fails(
        jit(|x: Array| x).in_shardings(&auto).call(&placed),
        ErrorKind::Value,
        &[
            "Layout passed to jit does not match the layout on the respective arg. Got jit layout: AUTO, arg layout: Layout(major_to_minor=(0, 1, 2)",
            "for argument[0] of type float32[2,3,4]",
        ],
    );
    assert!(error.help_text().is_some_and(|help| help.contains("shape_dtype_struct")), "{error}");
    assert_eq!((Layout::AUTO, auto.is_auto(), auto.layout()), (AutoLayout, true, None));
    Ok(())
}

/// A placed array keeps its layout, so a function that requires another one returns an error.
#[test]
fn layout_errors_of_placed_arrays() -> Result<()> {
    setup();
    let columns = here(COLUMNS)?;
    let x = cube();
    let placed = device_put(&x, &devices()?[0])?;
    let f = jit(|x: Array| x).in_shardings(&columns);
    fails(
        f.call(&placed),
        ErrorKind::Value,
        &["Got jit layout: Layout(major_to_minor=(2, 1, 0)", "arg layout: Layout(major_to_minor=(0, 1, 2)"],
    );
    let other_format = device_put(&x, here([1, 0, 2])?)?;
    fails(f.call(&other_format), ErrorKind::Value, &["arg layout: Layout(major_to_minor=(1, 0, 2)"]);
    let compiled = f.lower(&x)?.compile()?;
    fails(
        compiled.call(&other_format),
        ErrorKind::Value,
        &[
            "Computation was compiled for input layouts that disagree with the layouts of arguments passed to it",
            "argument[0] of type float32[2,3,4]: passed layout Layout(major_to_minor=(1, 0, 2)",
            "required layout Layout(major_to_minor=(2, 1, 0)",
        ],
    );
    fails(compiled.call(&placed), ErrorKind::Value, &["passed layout Layout(major_to_minor=(0, 1, 2)"]);
    assert_eq!(compiled.call(&x)?.to_vec::<f32>()?, floats(0..24));
    fails(
        jit(|x: Array| x).lower(&x)?.compile()?.call(&other_format),
        ErrorKind::Value,
        &["required layout Layout(major_to_minor=(0, 1, 2)"],
    );
    Ok(())
}

/// A layout needs a device, and the CPU supports neither tiles nor layouts in host memory.
#[test]
fn layout_errors_of_devices_and_tiles() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let x = cube();
    let nowhere = Format::new(Layout::new(COLUMNS), None);
    for error in [
        device_put(&x, &nowhere).err(),
        jit(|x: Array| x).in_shardings(&nowhere).call(&x).err(),
        jit(|x: Array| x).out_shardings(&nowhere).call(&x).err(),
    ] {
        fails(error.map_or(Ok(()), Err), ErrorKind::Value, &["Sharding has to be concrete when layout is given"]);
    }
    let tiled = Format::new(Layout::new([0, 1, 2]).with_tiling([[2, 2]]), device);
    for error in [
        device_put(&x, &tiled).err(),
        jit(|x: Array| x).in_shardings(&tiled).call(&x).err(),
        jit(|x: Array| x).out_shardings(&tiled).call(&x).err(),
    ] {
        fails(
            error.map_or(Ok(()), Err),
            ErrorKind::NotImplemented,
            &[
                "a layout with tiles, Layout(major_to_minor=(0, 1, 2), tiling=((2, 2),), sub_byte_element_size_in_bits=0), is not implemented on CPU",
            ],
        );
    }
    let host = SingleDeviceSharding::new(device).with_memory_kind("pinned_host");
    for layout in [Layout::new(COLUMNS).into(), LayoutOptions::Auto] {
        let requested = jit(|x: Array| x * 2.0).out_shardings(Format::new(layout, &host));
        fails(requested.call(&x), ErrorKind::NotImplemented, &["a layout in other memory than the device's, "]);
    }
    let on_host = Format::new(Layout::new(COLUMNS), &host);
    fails(device_put(&x, &on_host), ErrorKind::NotImplemented, &["a layout in other memory than the device's, "]);
    let empty = Format::new(Layout::new([0, 1, 2]).with_tiling([Vec::new()]), device);
    fails(device_put(&x, &empty), ErrorKind::Value, &["a tile has at least one dimension"]);
    fails(jit(|x: Array| x.format().map(|_| x)).call(&x), ErrorKind::Type, &["float32[2,3,4]"]);
    Ok(())
}

/// JAX chooses the same layouts in the same programs (`tools/golden/layouts.py`).
#[test]
fn the_compiler_receives_the_layouts_of_jax() -> Result<()> {
    setup();
    let device = &devices()?[0];
    let split = NamedSharding::new(&make_mesh([("a", 2), ("b", 4)])?.auto(), P!["a"]);
    let (columns, rows) = (Layout::new(COLUMNS), Layout::new([0, 1, 2]));
    let (given, auto) = (Format::new(&columns, device), Format::new(Layout::AUTO, device));
    let x = shape_dtype_struct([2, 3, 4], DType::F32);
    let placed = device_put(&cube(), &given)?;
    fn f(x: Array) -> Array {
        x + 1.0
    }
    let with_format = |format: &Format| jit(f).in_shardings(format).out_shardings(format);
    fn text(lowered: Lowered<(Array,), Array>) -> String {
        lowered.as_text().to_owned()
    }
    fn constrained(x: Array) -> Array {
        with_layout_constraint(x * 2.0, Layout::new(COLUMNS))
    }
    let by_format = {
        let captured = given.clone();
        move |x: Array| with_sharding_constraint(x * 2.0, &captured)
    };
    fn squared(x: Array) -> Array {
        with_layout_constraint(x, Layout::new(COLUMNS)).square().sum(..)
    }
    let tiles = Format::new(rows.clone().with_tiling([[8, 128], [2, 1]]), device);
    // The text of each program is summed up in a line, because the remaining text differs from JAX's.
    let cases = [
        ("given", text(with_format(&given).lower(&x)?)),
        ("default", text(with_format(&Format::new(&rows, device)).lower(&x)?)),
        ("auto", text(with_format(&auto).lower(&x)?)),
        ("auto without a sharding", text(with_format(&Format::from(Layout::AUTO)).lower(&x)?)),
        ("split", text(with_format(&Format::new(&columns, &split)).lower(&x)?)),
        ("tiles", text(jit(f).in_shardings(tiles).lower(&x)?)),
        ("passed", text(jit(f).lower(&placed)?)),
        ("passed, sharding given", text(jit(f).in_shardings(device).lower(&placed)?)),
        ("donated", text(with_format(&given).donate_argnums([0]).lower(&x)?)),
        ("donated, auto", text(with_format(&auto).donate_argnums([0]).lower(&x)?)),
        ("constrained", text(jit(constrained).lower(&x)?)),
        ("constrained inside", text(jit(move |x: Array| constrained(x) + 1.0).lower(&x)?)),
        ("constrained by a format", text(jit(by_format).lower(&x)?)),
        ("constrained, gradient", text(jit(grad(squared)).lower(&x)?)),
        ("constrained, vmap", text(jit(vmap(|x: Array| with_layout_constraint(x, Layout::new([1, 0])))).lower(&x)?)),
    ];
    let lines: Vec<String> = cases.iter().map(|(name, text)| format!("{name}: {}", summary(text))).collect();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/jax_layouts.txt");
    assert_eq!(lines, std::fs::read_to_string(golden).expect("it is committed").lines().collect::<Vec<_>>());

    let f = jit(move |x: Array| (with_layout_constraint(x.sin(), &columns), x))
        .in_shardings(&given)
        .out_shardings((None, &auto));
    let lowered = f.lower(&x)?;
    snapshot("lowered_layouts", &format!("{}\n\n{}", lowered.program(), lowered.as_text()));
    Ok(())
}

/// The layout mode in a part of a program's text. Layouts of arguments and results are attributes; constraints inside
/// of the
/// program are custom calls.
fn layout_mode(part: &str) -> String {
    let mode = part.split_once("mhlo.layout_mode = \"").and_then(|(_, rest)| rest.split_once('"'));
    mode.map_or("-".to_owned(), |(mode, _)| mode.to_owned())
}

/// As the generator of the reference sums a text up.
fn summary(text: &str) -> String {
    let main = text.lines().find(|line| line.contains("@main(")).expect("a main");
    let (arguments, results) = main.split_once(") -> (").expect("results");
    let orders = text.lines().filter(|line| line.contains("\"LayoutConstraint\""));
    fn order(line: &str) -> String {
        let (_, rest) = line.split_once("result_layouts = ").expect("an order");
        format!(
            "'{}]'",
            rest.split_once(']')
                .map(|(a, b)| format!("{a}]{}", b.split_once(']').expect("its end").0))
                .expect("a list")
        )
    }
    let orders: Vec<String> = orders.map(order).collect();
    let aliased = if arguments.contains("tf.aliasing_output") { "True" } else { "False" };
    format!(
        "argument {} result {} constraints [{}] aliased {aliased}",
        layout_mode(arguments),
        layout_mode(results),
        orders.join(", ")
    )
}
