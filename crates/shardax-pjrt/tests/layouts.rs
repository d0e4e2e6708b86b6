//! Layouts: parameters and results that are not row-major in memory.

mod common;
use common::*;
use shardax_pjrt::*;

/// x + x of 2 x 3 floats, with these layout modes for the argument and the result.
fn doubled(argument: &str, result: &str) -> String {
    fn mode(mode: &str) -> String {
        match mode {
            "" => String::new(),
            mode => format!(" {{mhlo.layout_mode = {mode:?}}}"),
        }
    }
    format!(
        "func.func @main(%x: tensor<2x3xf32>{}) -> (tensor<2x3xf32>{}) {{
            %y = stablehlo.add %x, %x : tensor<2x3xf32>
            return %y : tensor<2x3xf32>
        }}",
        mode(argument),
        mode(result)
    )
}

fn compiled(client: &Client, argument: &str, result: &str) -> Executable {
    client.compile(&doubled(argument, result), &CompileOptions::default(), signature([f32s(&[2, 3])])).unwrap()
}

fn order(layouts: Option<&[Layout]>) -> Vec<i64> {
    layouts.expect("the plugin shows its programs")[0].minor_to_major.clone()
}

const ROWS: &str = "{1,0}";
const COLUMNS: &str = "{0,1}";

#[test]
fn arrays_are_read_row_major() {
    let client = client(8);
    let x = client
        .buffer_from_host(&bytes(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), ElementType::F32, &[2, 3], &client.devices()[0])
        .unwrap();
    assert_eq!(x.memory_layout().unwrap(), Layout { minor_to_major: vec![1, 0], ..Layout::default() });
    let to_columns = compiled(&client, "", COLUMNS);
    assert_eq!((order(to_columns.parameter_layouts()), order(to_columns.output_layouts())), (vec![1, 0], vec![0, 1]));
    let y = to_columns.execute(&[&x]).unwrap().remove(0).remove(0);
    let doubled = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    fn check(y: &Buffer, doubled: &[f32; 6]) {
        assert_eq!(y.memory_layout().unwrap().minor_to_major, [0, 1]);
        assert_eq!((get(y), y.with_bytes(floats).unwrap()), (doubled.to_vec(), doubled.to_vec()));
        assert!(y.view().unwrap().is_none(), "the elements are not row-major");
        assert!(y.to_host(&mut [0; 3]).is_err());
    }
    check(&y, &doubled);
    // The plugin would copy the bytes unchanged and report the copy as row-major.
    let memory = client.devices()[0].default_memory().unwrap();
    for error in [y.copy_to_device(&client.devices()[1]).unwrap_err(), y.copy_to_memory(&memory).unwrap_err()] {
        assert!(error.message.contains("in the order [0, 1], from minor to major, cannot be copied"), "{error}");
    }

    // Only a program that declares this layout accepts the array.
    let from_columns = compiled(&client, COLUMNS, ROWS);
    let z = from_columns.execute(&[&y]).unwrap().remove(0).remove(0);
    assert_eq!(get(&z), [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]);
    assert!(z.view().unwrap().is_some());
    for (program, argument, words) in [
        (
            &from_columns,
            &x,
            "has its elements in row-major order, but the program takes dimensions in the order [0, 1]",
        ),
        (
            &to_columns,
            &y,
            "has its dimensions in the order [0, 1], from minor to major, but the program takes elements in row-major",
        ),
    ] {
        let error = program.execute(&[argument]).unwrap_err();
        assert!(error.message.contains(words), "{error}");
    }

    // Layouts survive serialization.
    let bytes = to_columns.serialize().unwrap();
    let loaded = client.deserialize(&bytes, &CompileOptions::default(), signature([f32s(&[2, 3])])).unwrap();
    check(&loaded.execute(&[&x]).unwrap()[0][0], &doubled);
}

#[test]
fn tiled_layouts_are_rejected() {
    let client = client(8);
    let text = doubled("", "{1,0:T(2,2)}");
    let error = client.compile(&text, &CompileOptions::default(), signature([f32s(&[2, 3])])).unwrap_err();
    assert!(error.message.contains("a tiled layout"), "{error}");
    // Errors of the compiler.
    for mode in ["{0,0}", "{0}", "{2,1}", "columns"] {
        let text = doubled(mode, "");
        client.compile(&text, &CompileOptions::default(), signature([f32s(&[2, 3])])).unwrap_err();
    }
}
