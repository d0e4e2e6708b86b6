//! Data of the formats that need a cargo feature: `cargo test -p shardax-train --test formats --all-features`.

#![cfg(any(feature = "image", feature = "parquet", feature = "tokenizers"))]

mod common;

use std::path::PathBuf;

use common::{Folder, fails};
use shardax::prelude::*;
use shardax_train::data::*;

#[cfg(feature = "image")]
#[test]
fn images_in_a_folder_for_each_class() -> Result<()> {
    use image::{ImageFormat, RgbImage};
    let packed = |rows: u32, columns: u32, color: [u8; 3], format| {
        let image =
            RgbImage::from_fn(columns, rows, |x, y| image::Rgb(color.map(|c| c.wrapping_add((x + 10 * y) as u8))));
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).expect("an image");
        bytes.into_inner()
    };
    let folder = Folder::new();
    let png = packed(4, 6, [10, 100, 30], ImageFormat::Png);
    folder.write("dog/1.png", &png);
    folder.write("cat/2.JPG", packed(16, 8, [90, 90, 90], ImageFormat::Jpeg));
    folder.write("cat/1.jpeg", packed(8, 8, [0, 0, 150], ImageFormat::Jpeg));
    folder.write("cat/notes.txt", "no image");
    folder.write("empty/notes.txt", "no image");
    let images = image_folder(&folder.0)?;
    assert_eq!((images.len(), images.classes()), (3, &["cat".to_owned(), "dog".to_owned()][..]));
    let dog = images.get(2)?;
    assert_eq!((dog["image"].shape(), dog["label"].to_vec::<i32>()?), (&[4, 6, 3][..], vec![1]));
    assert_eq!(dog["image"].bytes()[3 * 6 * 2 + 3..][..3], [31, 121, 51]);
    assert_eq!(images.get(1)?["image"].shape(), [16, 8, 3]);
    assert!(images.get(0)?["image"].bytes().chunks(3).all(|p| p[2] > p[0] + 80));
    // All of one size, unpacked on several threads.
    let sized = images.clone().resize(5, 7);
    let len = sized.len();
    let numbers = (len, Ok).stream().epochs(1);
    let batch = numbers.parallel_map(2, move |i| sized.get(i)).batch(3).next_item().expect("a batch")?;
    assert_eq!((batch["image"].shape(), batch["label"].to_vec::<i32>()?), (&[3, 5, 7, 3][..], vec![0, 0, 1]));
    assert_eq!(decode_image(&png, "member")?, dog["image"]);

    fails(
        decode_image(&png[..png.len() - 30], "1.png of a.tar"),
        &["1.png of a.tar is damaged", "at byte", "unpacked"],
    );
    fails(decode_image(b"nothing", "x"), &["x is damaged", "cannot be unpacked"]);
    let cut = folder.write("dog/1.png", &png[..40]);
    fails(images.get(2), &[&cut.display().to_string(), "at byte"]);
    fails(images.get(3), &["image 3 of 3"]);
    // Wherever a file ends, and whichever byte is wrong: an error that names both, or an image.
    let jpeg = packed(16, 8, [90, 90, 90], ImageFormat::Jpeg);
    for (whole, name) in [(&png, "a.png"), (&jpeg, "a.jpg")] {
        let damaged = |bytes: &[u8]| -> bool {
            let read = decode_image(bytes, name);
            let failed = read.is_err();
            if failed {
                fails(read, &[&format!("{name} is damaged"), "at byte "]);
            }
            failed
        };
        for end in 0..whole.len() - if name == "a.png" { 12 } else { 0 } {
            assert!(damaged(&whole[..end]), "{name} of {} bytes, cut off at {end}", whole.len());
        }
        let mut odd = whole.clone();
        let wrong = (0..whole.len()).filter(|at| {
            odd[*at] ^= 0x55;
            let wrong = damaged(&odd);
            odd[*at] ^= 0x55;
            wrong
        });
        assert!(wrong.count() > 20, "{name}");
    }
    fails(images.clone().resize(0, 3).get(0), &["0 × 3 pixels"]);
    fails(image_folder(folder.0.join("none")), &["cannot read", "none"]);
    fails(image_folder(folder.0.join("empty")), &["has no folder with a JPEG or PNG file"]);
    Ok(())
}

#[cfg(feature = "parquet")]
#[test]
fn tables_by_columns() -> Result<()> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/table.parquet");
    let table = parquet([&golden, &golden])?;
    assert_eq!(table.len(), 14);
    for i in [5, 0, 3, 4, 13, 6, 7] {
        let (row, n) = (table.get(i)?, i % 7);
        assert_eq!(row["id"].to_vec::<i64>()?, [n as i64], "row {i}");
        assert_eq!(row["score"].to_vec::<f32>()?, [n as f32 / 4.0]);
        assert_eq!(row["small"].to_vec::<u8>()?, [200 + n as u8]);
        assert_eq!(row["good"].to_vec::<bool>()?, [n % 3 == 0]);
        assert_eq!(row["text"].bytes(), "wörd ".repeat(n).as_bytes());
        // The first list is empty.
        assert_eq!(row["tokens"].to_vec::<i32>()?, (0..n as i32).collect::<Vec<_>>());
    }
    let mut stream = parquet([&golden])?.stream().shuffle(5, 1);
    stream.next_item().expect("a row")?;
    let (position, next) = (stream.position(), stream.next_item().expect("a row")?);
    let mut again = parquet([&golden])?.stream().shuffle(5, 1);
    again.seek(&position)?;
    assert_eq!(again.next_item().expect("a row")?, next);
    fails(table.get(14), &["row 14 of 14"]);

    let folder = Folder::new();
    let bytes_of_file = std::fs::read(&golden).expect("the file");
    fails(parquet([folder.0.join("none")]), &["cannot read", "none"]);
    fails(parquet([folder.write("text", "no table")]), &["text is damaged", "at byte 8", "as Parquet"]);
    fails(parquet([folder.write("cut", &bytes_of_file[..bytes_of_file.len() - 9])]), &["cut is damaged", "at byte "]);
    // Wherever a byte is wrong, it is an error or another value, and never a panic.
    let mut errors = 0;
    for at in (4..bytes_of_file.len() - 8).step_by(29) {
        let mut odd = bytes_of_file.clone();
        odd[at] ^= 0x55;
        let read = parquet([folder.write("odd", &odd)]);
        let read = read.and_then(|table| (0..table.len().min(20)).try_for_each(|i| table.get(i).map(drop)));
        if read.is_err() {
            fails(read, &["odd is damaged", "at byte "]);
            errors += 1;
        }
    }
    assert!(errors > 10, "{errors}");
    Ok(())
}

#[cfg(feature = "tokenizers")]
#[test]
fn byte_pairs_are_learned_and_give_texts_back() -> Result<()> {
    let folder = Folder::new();
    let text = "the sea is blue and the ship is on the sea. ".repeat(50);
    let file = folder.write("a.txt", &text);
    let learned = Tokenizer::train_bpe([&file], &BpeOptions::new(300).special_token("<|endoftext|>"))?;
    assert!((257..=300).contains(&learned.vocab_size()), "{}", learned.vocab_size());
    let tokens = learned.encode(&text)?;
    assert!(tokens.len() * 2 < text.len(), "{} tokens of {} bytes", tokens.len(), text.len());
    // Any text comes back, whatever it was learned from.
    for text in [&text, "", "Wörter, 言葉 🚢\n\t  two  spaces", "<|endoftext|>"] {
        assert_eq!(learned.decode(&learned.encode(text)?)?, text);
    }
    assert_eq!(learned.encode("<|endoftext|>")?.len(), 1);
    let path = folder.0.join("tokenizer.json");
    learned.save(&path)?;
    let read = Tokenizer::from_file(&path)?;
    assert_eq!((read.vocab_size(), read.encode(&text)?), (learned.vocab_size(), tokens));
    // Texts as they are packed.
    let texts = ["the sea", "is blue and the ship", "on the sea"];
    let rows = (3usize, move |i: usize| read.example(texts[i])).stream().epochs(1).concat_then_split(4);
    assert!(rows.map(|row| Ok(row["tokens"].shape().to_vec())).items().all(|shape| shape.is_ok_and(|s| s == [4])));

    fails(learned.decode(&[0, 99_999]), &["99999 is not a token"]);
    fails(Tokenizer::bytes().decode(&[-1]), &["-1 is not a token: the vocabulary has 256"]);
    fails(Tokenizer::train_bpe([&file], &BpeOptions::new(100)), &["it needs at least 256"]);
    fails(Tokenizer::train_bpe([folder.0.join("none")], &BpeOptions::new(300)), &["cannot read", "none"]);
    let odd = folder.write("odd.txt", b"the \xff sea");
    fails(Tokenizer::train_bpe([odd], &BpeOptions::new(300)), &["at byte 4, ", "odd.txt is not a text in UTF-8"]);
    fails(Tokenizer::from_file(&file), &["a.txt is not a tokenizer.json", "line 1"]);
    fails(Tokenizer::from_file(folder.0.join("none")), &["cannot read", "none"]);
    fails(Tokenizer::bytes().save(&path), &["bytes need no tokenizer.json"]);
    Ok(())
}
