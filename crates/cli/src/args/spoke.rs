//! The flags of the spoke itself: its daemon, and a renewal of its certificate.

use std::path::PathBuf;
use std::time;

use clap::Args;
use holdfast_ops::Duration;
use holdfast_spoke::address::Address;

/// How a spoke finds its hub, and who it is.
#[derive(Args, Debug)]
pub struct SpokeArgs {
    /// host:port of a hub node; several by repeating it or with commas, an IPv6 address in brackets.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', default_value = "localhost:50053")]
    pub server: Vec<Address>,
    /// Directory with key.pem, cert.pem and ca.pem, as `holdfast relay join` makes it.
    #[arg(long, value_name = "DIR", default_value = "/etc/holdfast/spoke")]
    pub credentials_dir: PathBuf,
    /// The name that the hub's certificate must bear, when it is not the host that is dialled.
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub spoke: SpokeArgs,
    /// Between heartbeats; 0 turns them off.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = at_most(time::Duration::from_hours(1)))]
    pub heartbeat_interval: Duration,
    /// Commands that run at once; twice as many more may wait.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_concurrency: u16,
    /// How long a command waits for its turn before it is refused as busy.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = at_most(time::Duration::from_hours(1)))]
    pub queue_timeout: Duration,
    /// Between looks at the certificate; 0 turns renewal off.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = at_most(time::Duration::from_hours(365 * 24)))]
    pub renew_check_every: Duration,
    /// The certificate is renewed when less than this part of its life is left.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub renew_threshold: f64,
    /// End with the first stream instead of dialling again: exit code 0 when it ended in order, else 1.
    #[arg(long)]
    pub once: bool,
    /// What is logged, such as `info,holdfast_spoke=debug`. HOLDFAST_LOG wins over it.
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
}

#[derive(Args, Debug)]
pub struct RenewArgs {
    #[command(flatten)]
    pub spoke: SpokeArgs,
    /// How long the new certificate is to live; 0 for the usual 30 days.
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub ttl: Duration,
}

/// A time up to this one.
fn at_most(most: time::Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| match text.parse::<Duration>() {
        Ok(time) if time.get() <= most => Ok(time),
        Ok(_) => Err(format!("longer than {}", Duration::from(most))),
        Err(error) => Err(error.to_string()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("not a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::Cli;

    #[test]
    fn a_time_that_no_clock_reaches_is_refused() {
        for flag in ["--heartbeat-interval", "--queue-timeout", "--renew-check-every"] {
            let parsed = |time: &str| Cli::try_parse_from(["holdfast", "relay", "run", flag, time]);
            parsed("1h").unwrap();
            assert!(parsed("18446744073709551615s").is_err(), "{flag}");
            assert!(parsed("8761h").is_err(), "{flag}");
        }
    }
}
