#include <utility>

#include "server/http_connection-inl.h"

namespace nibble::server {

Exchange::Exchange(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

bool Exchange::is_open() const { return impl_->connection != nullptr; }
const std::string& Exchange::request_id() const { return impl_->request_id; }

void Exchange::respond(const HttpResponse& response) {
  if (is_open()) impl_->connection->respond(response);
}
void Exchange::start_stream(const HttpResponse& head, Heartbeat heartbeat) {
  if (is_open()) impl_->connection->start_stream(head, std::move(heartbeat));
}
void Exchange::write(std::string_view bytes) {
  if (is_open()) impl_->connection->write(bytes);
}
void Exchange::finish_stream() {
  if (is_open()) impl_->connection->finish_stream();
}
void Exchange::set_note(std::string note) { impl_->note = std::move(note); }
void Exchange::at_deadline(TimePoint deadline, std::function<void()> callback) {
  if (is_open()) impl_->connection->watch_deadline(deadline, std::move(callback));
}
void Exchange::on_gone(std::function<void(Gone)> callback) {
  if (is_open()) return impl_->connection->watch(std::move(callback));
  if (impl_->gone) callback(*impl_->gone);
}

}  // namespace nibble::server
