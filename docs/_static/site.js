/* Scroll the sidebar to the current page. */
document.addEventListener("DOMContentLoaded", () => {
  const sidebar = document.querySelector(".sidebar-scroll");
  const current = sidebar?.querySelector(".current-page");
  if (current) {
    const { top } = current.getBoundingClientRect();
    const middle = sidebar.getBoundingClientRect().top + sidebar.clientHeight / 2;
    sidebar.scrollTo({ top: sidebar.scrollTop + top - middle, behavior: "instant" });
  }
});
