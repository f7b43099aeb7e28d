// Beside each time in UTC the same in the reader's zone.
for (const time of document.querySelectorAll("time")) {
  const at = new Date(time.dateTime);
  if (!at.getTimezoneOffset()) continue;
  const text = at.toLocaleString("sv"), day = at.toISOString().slice(0, 10);
  const zone = at.toLocaleTimeString([], {timeZoneName: "short"}).split(" ").pop();
  const here = document.createElement("small");
  here.textContent = `${text.startsWith(day) ? text.slice(11) : text} ${zone}`;
  time.after(here);
}
