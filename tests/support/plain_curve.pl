# Plain MDP/0.1 over CURVE, with Perl's ZMQ::FFI and the libzmq of the system: what a program that is none of ours does.
#
#     perl plain_curve.pl client ENDPOINT KEY_FILE SERVER_PUB_FILE SERVICE BODY    one request; prints the reply's body
#     perl plain_curve.pl worker ENDPOINT KEY_FILE SERVER_PUB_FILE SERVICE         prints "ready", answers one request
#                                                                                  with its body in capitals
use strict;
use warnings;
use ZMQ::FFI;
use ZMQ::FFI::Constants qw(:all);

my ($role, $endpoint, $key_file, $server_file, $service, $body) = @ARGV;
my $reply_ms = 60_000;
$| = 1;

sub half {
    my ($path, $name) = @_;
    open my $file, '<', $path or die "$path: $!";
    for (<$file>) { return $1 if /^\Q$name\E: *(\S+)/ }
    die "$path holds no $name key";
}

my $context = ZMQ::FFI->new();
my $socket = $context->socket($role eq 'client' ? ZMQ_REQ : ZMQ_DEALER);
$socket->set(ZMQ_CURVE_SERVERKEY, 'binary', half($server_file, 'public'));
$socket->set(ZMQ_CURVE_PUBLICKEY, 'binary', half($key_file, 'public'));
$socket->set(ZMQ_CURVE_SECRETKEY, 'binary', half($key_file, 'secret'));
$socket->set(ZMQ_RCVTIMEO, 'int', $reply_ms);
$socket->connect($endpoint);

if ($role eq 'client') {
    $socket->send_multipart(['MDPC01', $service, $body]);
    my @reply = $socket->recv_multipart();
    die "not a reply: @reply" unless @reply == 3 && $reply[0] eq 'MDPC01' && $reply[1] eq $service;
    print "$reply[2]\n";
    exit 0;
}

$socket->send_multipart(['', 'MDPW01', "\x01", $service]);
print "ready\n";
while (1) {
    my ($empty, $header, $command, $client, $delimiter, @parts) = $socket->recv_multipart();
    if ($command eq "\x04") { $socket->send_multipart(['', 'MDPW01', "\x04"]) }
    if ($command eq "\x02") {
        $socket->send_multipart(['', 'MDPW01', "\x03", $client, '', map { uc } @parts]);
        last;
    }
}
# Its context would drop what is not sent yet; the broker hangs up or sends the next heartbeat after it has the reply.
$socket->recv_multipart();
