//! Tests imports of archives, whole and damaged.

use std::fs;
use std::io::Write;

use super::Lab;
use super::sources::{npy, npz};
use crate::error::names_all;

#[test]
fn archives_are_what_is_in_them() {
    let lab = Lab::new();
    for (name, red) in [("a/1.png", 1), ("a/2.png", 2), ("b/1.png", 3), ("b/2.png", 4)] {
        lab.picture(&format!("pets/{name}"), [2, 3], red);
    }
    lab.write("table.csv", "x,class\n1,a\n2,a\n3,b\n4,b\n");
    let digest = |source: &str| lab.imported(source, &[]).set.train.sha256;
    let (pictures, rows) = (digest("pets"), digest("table.csv"));

    let tar = |name: &str, packed: bool, of: &str| {
        let file = fs::File::create(lab.path(name)).unwrap();
        let write = |file: Box<dyn Write>| {
            let mut archive = tar::Builder::new(file);
            if lab.path(of).is_dir() {
                archive.append_dir_all(format!("inner/{of}"), lab.path(of)).unwrap()
            } else {
                archive.append_path_with_name(lab.path(of), of).unwrap()
            }
            archive.into_inner().unwrap().flush().unwrap();
        };
        if packed {
            write(Box::new(flate2::write::GzEncoder::new(file, flate2::Compression::fast())))
        } else {
            write(Box::new(file))
        }
    };
    tar("pets.tar", false, "pets");
    tar("pets.tgz", true, "pets");
    tar("table.tar.gz", true, "table.csv");
    let zip = |name: &str, entries: &[(&str, &str)]| {
        let mut archive = zip::ZipWriter::new(fs::File::create(lab.path(name)).unwrap());
        for (entry, source) in entries {
            archive.start_file(*entry, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(&fs::read(lab.path(source)).unwrap()).unwrap();
        }
        archive.finish().unwrap();
    };
    let pets = [
        ("pets/a/1.png", "pets/a/1.png"),
        ("pets/a/2.png", "pets/a/2.png"),
        ("pets/b/1.png", "pets/b/1.png"),
        ("pets/b/2.png", "pets/b/2.png"),
    ];
    zip("pets.zip", &pets);
    zip("table.zip", &[("data/table.csv", "table.csv")]);
    for source in ["pets.tar", "pets.tgz", "pets.zip"] {
        assert_eq!(digest(source), pictures, "{source}");
    }
    for source in ["table.tar.gz", "table.zip"] {
        assert_eq!(digest(source), rows, "{source}");
    }
    assert!(lab.names().iter().all(|name| !name.ends_with(".part")));

    zip("outer.zip", &[("inner.zip", "pets.zip")]);
    let message = lab.import("outer.zip", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "/outer.zip: | unpack | import inner.zip"), "{message}");
    zip("out.zip", &[("../outside.png", "pets/a/1.png"), ("/root.png", "pets/a/1.png")]);
    assert!(lab.import("out.zip", &["--overwrite"]).is_err());
    assert!(!lab.path("outside.png").exists());
    zip("sheet.xlsx", &[("[Content_Types].xml", "table.csv")]);
    let whole = fs::read(lab.path("pets.zip")).unwrap();
    lab.write("cut.zip", &whole[..whole.len() / 2]);
    let whole = fs::read(lab.path("pets.tar")).unwrap();
    lab.write("cut.tar", &whole[..700]);
    for (source, expected) in [
        ("sheet.xlsx", "sheet.xlsx: | spreadsheet | .csv"),
        ("cut.zip", "cut.zip: | cannot be unpacked"),
        ("cut.tar", "cut.tar: | cannot be unpacked"),
    ] {
        let message = lab.import(source, &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
}

#[test]
fn damaged_archives_are_not_imported() {
    let lab = Lab::new();
    let pixels: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let whole = npz(&[("x", npy("|u1", &[10, 20, 20], &pixels)), ("y", npy("|u1", &[10], &[0; 10]))]);
    lab.write("whole.npz", &whole);
    lab.imported("whole.npz", &[]);
    for at in (100..whole.len() - 200).step_by(whole.len() / 20) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        lab.write("damaged.npz", &damaged);
        lab.import("damaged.npz", &["--overwrite"]).unwrap_err();
    }
    // Errors about damaged and unsupported archives do not contain words of the decoders.
    let gz = |bytes: &[u8]| {
        let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        file.write_all(bytes).unwrap();
        file.finish().unwrap()
    };
    let rows = gz(b"a,label\n1,x\n2,x\n3,y\n4,y\n");
    let methods = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        for (signature, offset) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
            let found: Vec<usize> =
                (0..bytes.len() - 4).filter(|&at| bytes[at..].starts_with(signature)).collect();
            found.into_iter().for_each(|at| bytes[at + offset] = 12);
        }
        bytes
    };
    let parquet = crate::import::tests::parquet::table(&[1.0, 2.0], Some(&["a", "b"]));
    for (name, bytes, expected) in [
        ("cut.npz", whole[..whole.len() / 2].to_vec(), "cut.npz: | damaged | download the file again"),
        ("method.zip", methods(&whole), "method.zip: | method 12, | unpack"),
        ("cut.csv.gz", rows[..rows.len() - 12].to_vec(), "cut.csv.gz: | truncated | download the file again"),
        (
            "bits.csv.gz",
            [&rows[..12], &[0xff; 8], &rows[20..]].concat(),
            "bits.csv.gz: | damaged | download the file again",
        ),
        (
            "cut.parquet",
            parquet[..parquet.len() - 6].to_vec(),
            "cut.parquet: | damaged | download the file again",
        ),
        (
            "bits.parquet",
            [&parquet[..parquet.len() - 40], &[0x55; 32], &parquet[parquet.len() - 8..]].concat(),
            "bits.parquet: | damaged | download the file again",
        ),
    ] {
        lab.write(name, bytes);
        let message = lab.import(name, &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let table = b"a,label\n1,x\n2,x\n3,y\n4,y\n";
    let mut header = tar::Header::new_gnu();
    header.set_size(table.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "t.csv", &table[..]).unwrap();
    let mut bytes = archive.into_inner().unwrap().finish().unwrap();
    lab.write("t.tar.gz", &bytes);
    lab.imported("t.tar.gz", &[]);
    // The last 8 bytes of a gzip file are the checksum and the length. Damage the checksum.
    let end = bytes.len();
    bytes[end - 8] ^= 1;
    lab.write("t.tar.gz", &bytes);
    let message = lab.import("t.tar.gz", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "t.tar.gz: | cannot be unpacked"), "{message}");
}
