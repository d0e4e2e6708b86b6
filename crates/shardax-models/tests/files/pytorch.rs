//! PyTorch's files, and kernels that are stored as several arrays.

use shardax_models::huggingface::Weights;
use shardax_models::{Decoder, Pretrained};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::{golden, same_arrays, setup};

/// Strides, parts of storages, all dtypes, parameters, and nested dictionaries.
#[test]
fn pytorch_files_have_the_tensors_of_torch_load() -> Result<()> {
    setup();
    let (expected, found) =
        (Weights::open(golden("pytorch/tensors.safetensors"))?, Weights::open(golden("pytorch/tensors.pt"))?);
    same_arrays(&expected, &found)?;
    assert_eq!(found.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>());
    Ok(())
}

#[test]
fn pytorch_folders_are_models() -> Result<()> {
    setup();
    let tokens = array([[3, 1, 4, 1, 5]]);
    let (old, new) = (Decoder::from_pretrained(golden("pytorch"))?, Decoder::from_pretrained(golden("qwen2"))?);
    assert_eq!(old.forward(&tokens).to_vec::<f32>()?, new.forward(&tokens).to_vec::<f32>()?);

    let temp = Folder::new();
    temp.write("a.bin", std::fs::read(golden("pytorch/pytorch_model.bin")).expect("a file"));
    temp.write("pytorch_model.bin.index.json", r#"{"weight_map": {"model.norm.weight": "a.bin"}}"#);
    assert_eq!(Weights::open(&temp.0)?.get("model.norm.weight")?.shape(), [16]);
    Ok(())
}

/// Files of the format before PyTorch 1.6 have the same tensors.
#[test]
fn older_pytorch_files_have_the_tensors_of_torch_load() -> Result<()> {
    setup();
    let path = golden("pytorch/older.bin");
    let (expected, found) = (Weights::open(golden("pytorch/tensors.safetensors"))?, Weights::open(&path)?);
    same_arrays(&expected, &found)?;
    assert_eq!(found.names().collect::<Vec<_>>(), expected.names().collect::<Vec<_>>());
    let (temp, file) = (Folder::new(), std::fs::read(&path).expect("a file"));
    fails(Weights::open(temp.write("cut.bin", &file[..file.len() - 1])), &["cut.bin", "does not fit"]);
    for length in (0..file.len()).step_by(97) {
        // No part of a file is read beyond its end.
        assert!(Weights::open(temp.write("part.bin", &file[..length])).is_err());
    }
    Ok(())
}

/// A pickle is a program, and must not call unknown functions.
#[test]
fn pickles_that_call_other_functions_are_errors() -> Result<()> {
    setup();
    fails(
        Weights::open(golden("pytorch/call.pt")),
        &["cannot read the tensors of", "call.pt", "it calls __builtin__.print"],
    );
    let temp = Folder::new();
    fails(
        Weights::open(temp.write("old.bin", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")),
        &["old.bin", "ends early", "the version", "torch.save"],
    );
    let file = std::fs::read(golden("pytorch/tensors.pt")).expect("a file");
    fails(Weights::open(temp.write("cut.pt", &file[..file.len() / 2])), &["not a zip archive"]);
    Ok(())
}
