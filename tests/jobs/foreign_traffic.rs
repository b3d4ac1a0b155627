//! Foreign traffic: connections and bytes from other programs either change nothing, or end the job with a
//! line.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Stdio;

use crate::harness::*;

/// The local ports of a process's sockets in `table`, a table of `/proc/net`, that are in `state`. State 0A
/// is a listening socket, 07 a UDP socket.
fn ports(pid: u64, table: &str, state: &str) -> BTreeSet<u16> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            let to = fs::read_link(link.path()).ok()?;
            Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let lines = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ours = fields.get(3) == Some(&state) && sockets.contains(*fields.get(9)?);
        ours.then(|| u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok())?
    };
    lines.lines().skip(1).filter_map(port).collect()
}

fn send_garbage(port: u16, bytes: &[u8]) {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(mut stream) = TcpStream::connect_timeout(&at, limit()) {
        let _ = stream.write_all(bytes);
    }
}

/// Sends garbage to every port of every rank, in the middle of a run.
#[test]
fn garbage_sent_to_a_ranks_ports_changes_nothing_or_ends_the_job() {
    let lab = Lab::new();
    for backend in ["mpi", "gloo"] {
        let options = ["--epochs", "6", "--fused", "off", "--backend", backend, "--comm-timeout", HOUR];
        let expected = lab.train(2, &format!("whole-{backend}"), &options);
        let name = format!("run-{backend}");
        let mut command = lab.command(2, &name, &options);
        let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let epochs = lab.path(&name).join("epochs.csv");
        wait_until(&mut job, "the first epoch", || {
            fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
        });
        let mut sent = 0;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for place in lab.run_json(&name)["places"].as_array().unwrap() {
            let pid = place["pid"].as_u64().unwrap();
            for port in ports(pid, "tcp", "0A") {
                // A port scan, an HTTP request, and bytes that claim an impossible length.
                for bytes in [&b""[..], b"GET / HTTP/1.0\r\n\r\n", &[0xff; 64]] {
                    send_garbage(port, bytes);
                    sent += 1;
                }
            }
            let guards = ports(pid, "udp", "07");
            assert!(!guards.is_empty(), "the guard listens");
            for port in guards {
                for kind in 0..6u64 {
                    let header: Vec<u8> =
                        [1, 1, 0, 0, 0, kind, 9].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
                    socket.send_to(&header, (Ipv4Addr::LOCALHOST, port)).unwrap();
                    socket.send_to(b"?", (Ipv4Addr::LOCALHOST, port)).unwrap();
                }
            }
        }
        assert!(sent > 0, "MPI listens");
        let output = ended(job);
        if output.status.success() {
            let run = lab.run_json(&name);
            assert_eq!(run["weights_sha256"], expected["weights_sha256"], "{backend}");
        } else {
            assert!(!errors(&output).is_empty(), "{backend}: {}", text(&output))
        }
    }
}
