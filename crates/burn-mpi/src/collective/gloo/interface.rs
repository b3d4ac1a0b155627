//! Chooses the network interface and the address on which gloo listens.
//!
//! By default, gloo looks up the name of its host, and aborts the process if the look-up fails. Callers
//! therefore always pass an address to gloo. [`choose`] returns this address: the address of the interface
//! that the user named, or an address that all ranks can reach.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

use serde::{Deserialize, Serialize};

use crate::{CommError, World};

/// An address of this host, and its interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    pub interface: String,
    pub ip: IpAddr,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.interface, self.ip)
    }
}

/// A rank's network addresses, as sent to the other ranks.
#[derive(Serialize, Deserialize)]
struct Network {
    /// Boot id and network namespace. Ranks with equal values share one loopback interface.
    namespace: String,
    host: String,
    addresses: Vec<Address>,
}

/// Returns this rank's address on the interface `name`. All ranks must call this function, and all return an
/// error if one rank fails.
///
/// If `name` is `None` and all ranks share one loopback interface, the address is on that interface. If
/// `name` is `None` and the ranks have different loopback interfaces, rank 0 takes the address from which it
/// reaches the first rank on another host. The other ranks take the address from which they reach rank 0's
/// address. So all hosts use the same network, even if several networks connect them.
pub(crate) fn choose(world: &World, name: Option<&str>) -> Result<Address, CommError> {
    let kind = if name.is_some() { "a name" } else { "no name" };
    world.check_equal("Transport::interface", kind)?;
    let mine = world.agree(addresses())?;
    if let Some(name) = name {
        return world.agree(named(&mine, name));
    }
    let place = &world.places()[world.rank()];
    let network = Network {
        namespace: format!("{} {}", place.boot_id, network_namespace()),
        host: place.host.clone(),
        addresses: mine.clone(),
    };
    let all = world.gather(&network)?;
    let Some(elsewhere) = all.iter().find(|other| other.namespace != all[0].namespace) else {
        return Ok(loopback(&mine).clone());
    };
    let first = world.agree(if world.is_root() {
        towards(&mine, &targets(elsewhere, &mine), &elsewhere.host)
    } else {
        Ok(mine[0].clone())
    })?;
    let first = world.broadcast(&first)?;
    world.agree(towards(&mine, &[first.ip], &all[0].host))
}

/// Returns the addresses of this host, IPv4 first. A host without addresses is an error.
fn addresses() -> Result<Vec<Address>, String> {
    let found = if_addrs::get_if_addrs()
        .map_err(|error| format!("cannot list the network interfaces of this host: {error}"))?;
    let mut all: Vec<Address> = found
        .into_iter()
        // A socket binds to a link-local IPv6 address only together with an interface number, which gloo does
        // not pass.
        .filter(|interface| interface.ip().is_ipv4() || !interface.is_link_local())
        .map(|interface| Address { ip: interface.ip(), interface: interface.name })
        .collect();
    if all.is_empty() {
        return Err("no network interface of this host has an address".into());
    }
    all.sort_by_key(|address| address.ip.is_ipv6());
    Ok(all)
}

fn named(mine: &[Address], name: &str) -> Result<Address, String> {
    mine.iter().find(|address| address.interface == name).cloned().ok_or_else(|| {
        let there: Vec<String> = mine.iter().map(ToString::to_string).collect();
        format!(
            "network interface {name} does not exist or has no address; choose one of: {}",
            there.join(", ")
        )
    })
}

/// Returns the loopback address, or the first address if this host has no loopback interface.
fn loopback(mine: &[Address]) -> &Address {
    mine.iter().find(|address| address.ip.is_loopback()).unwrap_or(&mine[0])
}

/// Returns addresses by which `other` may be reached: first the addresses of `other` to which its host name
/// resolves, then all its addresses. Leaves out loopback addresses, and addresses that this host has too,
/// such as the addresses of container bridges.
fn targets(other: &Network, mine: &[Address]) -> Vec<IpAddr> {
    let by_name = (other.host.as_str(), 0).to_socket_addrs().into_iter().flatten().map(|a| a.ip());
    let theirs = |ip: &IpAddr| other.addresses.iter().any(|address| address.ip == *ip);
    let usable = |ip: &IpAddr| !ip.is_loopback() && mine.iter().all(|address| address.ip != *ip);
    let all = other.addresses.iter().map(|address| address.ip);
    by_name.filter(theirs).chain(all).filter(usable).collect()
}

/// Finds the first of `targets` to which this host has a route, and returns the local address of that route.
/// Connecting a UDP socket asks the kernel for the route and sends nothing.
fn towards(mine: &[Address], targets: &[IpAddr], host: &str) -> Result<Address, String> {
    let source = |target: &IpAddr| {
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((*target, 9)).ok()?;
        let source = socket.local_addr().ok()?.ip();
        mine.iter().find(|address| address.ip == source && !source.is_loopback()).cloned()
    };
    targets.iter().find_map(source).ok_or_else(|| {
        let there: Vec<String> = mine.iter().map(ToString::to_string).collect();
        format!(
            "no network interface of this host has a route to {host}; name the interface to use, one of: {}",
            there.join(", ")
        )
    })
}

/// Returns the network namespace of this process, such as `net:[4026531840]`; empty if unknown.
fn network_namespace() -> String {
    std::fs::read_link("/proc/self/ns/net").map_or_else(|_| String::new(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, ip: &str) -> Address {
        Address { interface: interface.into(), ip: ip.parse().unwrap() }
    }

    #[test]
    fn an_unknown_interface_is_named_with_those_there_are() {
        let mine = [address("lo", "127.0.0.1"), address("eth0", "10.77.0.1")];
        assert_eq!(named(&mine, "eth0").unwrap(), mine[1]);
        let error = named(&mine, "ib0").unwrap_err();
        assert!(error.contains("ib0") && error.contains("lo (127.0.0.1), eth0 (10.77.0.1)"), "{error}");
    }

    #[test]
    fn the_loopback_reaches_this_host_but_is_no_way_to_others() {
        let mine = addresses().expect("an interface");
        assert!(loopback(&mine).ip.is_loopback());
        assert!(towards(&mine, &["127.0.0.1".parse().unwrap()], "here").unwrap_err().contains("here"));
    }

    #[test]
    fn bridges_that_both_hosts_have_are_no_way_between_them() {
        let mine = [address("lo", "127.0.0.1"), address("docker0", "172.17.0.1")];
        let other = Network {
            namespace: "other".into(),
            host: "no-such-host.invalid".into(),
            addresses: [mine.as_slice(), &[address("eth0", "10.77.0.2")]].concat(),
        };
        assert_eq!(targets(&other, &mine), ["10.77.0.2".parse::<IpAddr>().unwrap()]);
    }
}
