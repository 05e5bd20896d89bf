extern crate std;
use super::*;
use std::{vec, vec::Vec};

fn bundle_of(entry: Entry, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes.extend_from_slice(content);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        entries: 1,
        size: bytes.len() as u64,
        reserved: 0,
    };
    bytes[..32].copy_from_slice(header.as_bytes());
    bytes[32..96].copy_from_slice(entry.as_bytes());
    bytes
}

fn kernel(size: u64) -> Entry {
    let name = Text::new("k").unwrap();
    Entry {
        kind: kind::KERNEL,
        reserved: 0,
        offset: 4096,
        size,
        name,
    }
}

#[test]
fn what_was_put_in_comes_out() {
    let bytes = bundle_of(kernel(3), b"abc");
    let bundle = Bundle::parse(&bytes).unwrap();
    let (n, _) = bundle.find(kind::KERNEL, "k").unwrap();
    assert_eq!(bundle.content_of(n, kind::KERNEL), Some(&b"abc"[..]));
    assert_eq!(bundle.content_of(n, kind::DISK), None);
    assert!(bundle.find(kind::DISK, "k").is_none());
    assert_eq!(bundle.vm(n).unwrap_err(), BundleError::Vm(0));
}

#[test]
fn lies_are_refused() {
    let parse = |bytes: &[u8]| Bundle::parse(bytes).map(|_| ()).unwrap_err();
    assert_eq!(parse(&bundle_of(kernel(4), b"abc")), BundleError::Entry(0));
    assert_eq!(
        parse(&bundle_of(kernel(u64::MAX), b"abc")),
        BundleError::Entry(0)
    );
    let mut odd = kernel(1);
    odd.offset = 4097;
    assert_eq!(parse(&bundle_of(odd, b"abc")), BundleError::Entry(0));
    let good = bundle_of(kernel(3), b"abc");
    assert_eq!(parse(&good[..20]), BundleError::Short(20));
    assert!(matches!(parse(&good[..100]), BundleError::Truncated(_)));
    let mut many = good.clone();
    many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(parse(&many), BundleError::Truncated(_)));
    let mut other = good;
    other[8] = 9;
    assert_eq!(parse(&other), BundleError::Version(9));
}
