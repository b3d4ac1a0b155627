//! Validation of network options against the kind of network.

use super::{ConfigError, at_most, parse, positive};
use crate::cli::NetworkArgs;
use crate::model::{ModelKind, NetworkOptions};

/// Maximum width of the mlp's hidden layer: 512 weights of 4 bytes for each unit.
const MAX_HIDDEN: usize = 1 << 20;

/// The validated options of a network of that kind.
pub(super) fn network_options(args: &NetworkArgs, model: ModelKind) -> Result<NetworkOptions, ConfigError> {
    let options = NetworkOptions {
        activation: parse("activation", &args.activation)?,
        batch_norm: args.batch_norm,
        dropout: args.dropout,
        hidden: args.hidden,
    };
    check(&options, model)?;
    Ok(options)
}

/// Checks the options against the kind of network.
pub(super) fn check(options: &NetworkOptions, model: ModelKind) -> Result<(), ConfigError> {
    let NetworkOptions { hidden, dropout, .. } = *options;
    if let Some(hidden) = hidden.filter(|_| model != ModelKind::Mlp) {
        let problem = format!("{model} has no hidden layer to set; leave the option out, or --model mlp");
        return Err(ConfigError::new("hidden", hidden, problem));
    }
    if !(0.0..1.0).contains(&dropout) {
        return Err(ConfigError::new("dropout", dropout, "must be 0 or more and less than 1"));
    }
    if let Some(width) = hidden {
        at_most("hidden", positive("hidden", width)?, MAX_HIDDEN, "its weights then take 2 GiB")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::RunConfig;
    use super::super::tests::train;
    use super::*;
    use crate::model::Activation;

    #[test]
    fn the_networks_are_the_reports_unless_asked_otherwise() {
        assert_eq!(train("").unwrap().network, NetworkOptions::default());
        let words = "--model mlp --activation gelu --batch-norm --dropout 0.5 --hidden 64";
        let network = train(words).unwrap().network;
        let expected =
            NetworkOptions { activation: Activation::Gelu, batch_norm: true, dropout: 0.5, hidden: Some(64) };
        assert_eq!(network, expected);
    }

    #[test]
    fn senseless_values_are_refused_by_option_and_value() {
        for (options, expected) in [
            ("--activation swish", "--activation swish: unknown activation swish: choose relu, tanh"),
            ("--dropout 1", "--dropout 1: must be 0 or more and less than 1"),
            ("--dropout -0.1", "--dropout -0.1: must be 0 or more and less than 1"),
            ("--dropout NaN", "--dropout NaN: must be 0 or more and less than 1"),
            ("--model vgg --hidden 64", "--hidden 64: vgg has no hidden layer to set; leave the option out"),
            ("--model mlp --hidden 0", "--hidden 0: must be at least 1"),
            ("--model mlp --hidden 1000000000000", "--hidden 1000000000000: must be at most 1048576: its"),
        ] {
            let message = train(options).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn run_json_holds_them_beside_the_others_and_older_ones_go_without() {
        let config = train("--dropout 0.5").unwrap();
        let mut json = serde_json::to_value(&config).unwrap();
        assert_eq!((&json["dropout"], &json["activation"]), (&0.5.into(), &"relu".into()));
        assert_eq!(serde_json::from_value::<RunConfig>(json.clone()).unwrap(), config);
        let fields = json.as_object_mut().unwrap();
        fields.retain(|name, _| !["activation", "batch_norm", "dropout", "hidden"].contains(&name.as_str()));
        let older = serde_json::from_value::<RunConfig>(json).unwrap();
        assert_eq!(older.network, NetworkOptions::default());
    }
}
