/* Draws the figures that the page carries as JSON, in the colours of the page's own variables. */
(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures").textContent);
  var isTouch = window.matchMedia("(pointer: coarse)").matches;
  var isNarrow = window.matchMedia("(max-width: 760px)");

  function coloured(value, style) {
    if (typeof value === "string") {
      return value.slice(0, 2) === "--" ? style.getPropertyValue(value).trim() || value : value;
    }
    if (Array.isArray(value)) {
      return value.map(function (each) { return coloured(each, style); });
    }
    if (value !== null && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = coloured(value[key], style); });
      return copy;
    }
    return value;
  }

  function draw(place) {
    var figure = figures[place.dataset.figure];
    var ready = coloured(figure, window.getComputedStyle(document.documentElement));
    // A finger scrolls the page; a mouse may zoom the time, and a double click goes back.
    ready.layout.dragmode = isTouch ? false : "zoom";
    // A time with its seconds is as wide as six letters, and must not run into the next.
    var axis = ready.layout.xaxis;
    if (axis && axis.nticks) { axis.nticks = Math.min(axis.nticks, Math.max(2, Math.floor(place.clientWidth / 110))); }
    return window.Plotly.react(place, ready.data, ready.layout, { responsive: true, displayModeBar: false });
  }

  var places = Array.prototype.slice.call(document.querySelectorAll(".plot"));

  function drawAll() {
    return Promise.all(places.map(draw)).then(function () {
      document.documentElement.dataset.plots = "drawn";
    });
  }

  document.querySelectorAll("select[data-plot]").forEach(function (select) {
    select.addEventListener("change", function () {
      var place = document.getElementById(select.dataset.plot);
      place.dataset.figure = select.value;
      draw(place);
    });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  isNarrow.addEventListener("change", drawAll);
  drawAll();
})();
